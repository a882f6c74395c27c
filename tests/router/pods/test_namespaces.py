"""Requests that an engine keeps apart, and engines whose events do not show that."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.router.pick.weighed import FakeRank
from tests.router.service_stand import IDS, packed, standing
from warmpath.indexer.keys.key import pack_tokens
from warmpath.indexer.trust import Level
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.pods.namespaces import asked, limit_known
from warmpath.router.pods.table import Pod, Status
from warmpath.router.prompt.token_prompt import ReadPrompt, TokenPrompt


def pod(engine: str, version: str = "", models: tuple[str, ...] = ("m",)) -> Pod:
    status = Status(healthy=True, version=version, models=models)
    return Pod("p", "p:80", "m", (FakeRank("p"),), status=status, engine=engine)


def hybrid(version: str) -> Pod:
    one = pod("sglang", version)
    one.status = replace(one.status, is_hybrid=True)
    return one


def reason(of: Pod) -> str:
    [rank] = of.ranks
    return rank.trust.reason if rank.trust.level is Level.DEGRADED else ""


def ask(*pods: Pod, lora_path: str = "", **apart: str) -> TokenPrompt:
    prompt = TokenPrompt("m", pack_tokens(IDS), **apart)
    prompt = ReadPrompt(prompt, 0, lora_path).apart(pod.engine for pod in pods)
    asked(prompt, pods)
    return prompt


@pytest.mark.parametrize(
    ("engine", "version", "field", "word"),
    [
        ("sglang", "0.5.23", "extra_key", "extra keys"),
        ("sglang", "", "extra_key", "extra keys"),
        ("sglang", "0.5.22", "lora", "adapters"),
        ("sglang", "", "lora", "adapters"),
        ("sglang", "0.5.23", "lora", ""),
        ("sglang", "0.5.23.post1", "lora", ""),
        ("sglang", "0.5.17", "cache_salt", "salts"),
        ("sglang", "0.5.18", "cache_salt", ""),
        ("sglang", "1.0", "cache_salt", ""),
        ("trtllm", "1.2.0", "lora", "adapters"),
        ("trtllm", "1.3.0", "cache_salt", "salts"),
        ("vllm", "0.16.0", "cache_salt", "salts"),
        ("vllm", "0.17.1", "cache_salt", ""),
        ("vllm", "", "cache_salt", ""),
        ("vllm", "0.10.0", "lora", ""),
    ],
)
def test_a_request_with_a_key_that_events_do_not_tell_degrades_the_pod(
    engine: str, version: str, field: str, word: str
) -> None:
    one = pod(engine, version)
    ask(one)
    assert reason(one) == ""
    ask(one, **{field: "x"})
    assert (word in reason(one)) if word else not reason(one)
    ask(one)
    assert (word in reason(one)) if word else not reason(one)


def test_what_was_asked_counts_again_when_the_version_is_known() -> None:
    one = pod("sglang")
    ask(one, lora="support")
    assert "adapters" in reason(one)
    one.status = Status(healthy=True, version="0.5.23")
    limit_known(one)
    assert reason(one) == ""


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (pod("sglang", "0.5.6.post2"), "0.5.6.post2 announces the removal"),
        (pod("sglang", "0.5.7"), ""),
        (hybrid("0.5.23"), "its model has sliding windows or states"),
        (pod("sglang", "0.5.22", ("m", "support")), "it serves adapters"),
        (pod("sglang", "0.5.23", ("m", "support")), ""),
        (pod("vllm", "0.10.0", ("m", "support")), ""),
    ],
)
def test_what_an_engine_says_of_itself_degrades_its_pod(one: Pod, words: str) -> None:
    limit_known(one)
    assert (words in reason(one)) if words else not reason(one)


def test_only_sglang_heeds_its_own_fields() -> None:
    prompt = ask(pod("vllm"), extra_key="x", lora_path="support")
    assert (prompt.extra_key, prompt.lora) == ("", "")
    prompt = ask(pod("vllm"), pod("sglang"), extra_key="x", lora_path="support")
    assert (prompt.extra_key, prompt.lora) == ("x", "support")
    assert ask(pod("sglang"), lora="legal", lora_path="support").lora == "legal"


def test_an_extra_key_has_keys_of_its_own() -> None:
    plain, salted, apart = (
        TokenPrompt("m", pack_tokens(IDS), cache_salt=salt, extra_key=extra)
        for salt, extra in (("", ""), ("x", ""), ("", "x"))
    )
    assert len({plain, salted, apart}) == 3
    assert len({prompt.chain(16, "").root for prompt in (plain, salted, apart)}) == 3


async def test_a_body_with_an_extra_key_is_told_nothing_and_others_not_exactly(
    tmp_path: Path, model_folder: Path
) -> None:
    async with standing(tmp_path, model_folder, "sglang", "--dialect=sglang-0.5.23") as stand:
        await stand.generate({"model": "demo", "prompt": IDS})
        await stand.has_blocks(6)
        [score] = (await stand.score(packed())).scores
        assert (score.matched_tokens, score.trust.level) == (96, pb.Trust.EXACT)
        for body in (
            {"model": "demo", "prompt": IDS, "extra_key": "class-1"},
            {"model": "demo", "prompt": IDS, "extra_key": ["class-1"]},
        ):
            [score] = (
                await stand.score(pb.Prompt(completions_body=json.dumps(body).encode()))
            ).scores
            assert (score.matched_tokens, score.trust.level) == (0, pb.Trust.DEGRADED)
        [score] = (await stand.score(packed(extra_key="class-1"))).scores
        assert score.matched_tokens == 0
        picked = await stand.stub.Pick(pb.PickRequest(prompt=packed(extra_key="class-2")))
        assert picked.candidates[0].matched_tokens == 0
        [score] = (await stand.score(packed())).scores
        assert (score.matched_tokens, score.trust.level) == (96, pb.Trust.DEGRADED)
        assert "extra keys" in score.trust.reason


async def test_sglangs_ways_to_name_an_adapter_are_known(
    tmp_path: Path, model_folder: Path
) -> None:
    async with standing(tmp_path, model_folder, "sglang", "--dialect=sglang-0.5.23") as stand:
        await stand.generate({"model": "tuned", "prompt": IDS})
        await stand.has_blocks(6)
        for body in (
            {"model": "demo:tuned", "prompt": IDS},
            {"model": "demo", "prompt": IDS, "lora_path": "tuned"},
        ):
            [score] = (
                await stand.score(pb.Prompt(completions_body=json.dumps(body).encode()))
            ).scores
            assert score.matched_tokens == 96
