"""Picks of texts that nobody can tokenise now: by their length and the pods' load, and they say so."""

import asyncio
import json
from pathlib import Path
from shutil import copytree

import grpc
import pytest

from tests.router.pick_stand import QUIET, Stand, pod, standing
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.prompt import texts

TEXT = "Explain prefix caching. " * 500
"""12,000 characters."""
CHAT = {"messages": [{"role": "user", "content": TEXT}]}
PODS = QUIET + pod("a") + pod("b")
LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"

FORMS = {
    "text": lambda model: pb.Prompt(model=model, text=TEXT),
    "chat": lambda model: pb.Prompt(chat_body=json.dumps(CHAT | {"model": model}).encode()),
    "completion": lambda model: pb.Prompt(completions_body=json.dumps({"prompt": TEXT, "model": model}).encode()),
}  # fmt: skip


def scored(stand: Stand, prompt: pb.Prompt) -> grpc.aio.UnaryUnaryCall[object, pb.ScoreResponse]:
    return stand.stub.Score(pb.ScoreRequest(prompt=prompt), timeout=30)  # type: ignore[return-value]


@pytest.mark.parametrize("form", FORMS)
async def test_a_model_without_a_tokenizer_is_picked_for_by_length(
    form: str, tmp_path: Path
) -> None:
    async with standing(tmp_path, PODS) as stand:
        prompt = FORMS[form]("demo")
        first = await stand.pick(prompt)
        assert 3000 <= first.prompt_tokens == first.reckoned_tokens <= 3100
        assert "'demo' has no" in first.reckoned_because
        # It is booked by its length, so that the next goes elsewhere.
        second = await stand.pick(prompt)
        assert {first.candidates[0].pod, second.candidates[0].pod} == {"a", "b"}
        assert all(not one.matched_tokens for one in second.candidates)
        assert await stand.report(first.booking_id, "FINISHED")
        code, _ = await stand.refused(scored(stand, prompt))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        explained = await stand.explain(prompt)
        assert explained.reckoned_tokens == first.reckoned_tokens
        assert explained.reckoned_because == first.reckoned_because
        [finding] = (await stand.diagnose()).findings
        assert (finding.kind, finding.model) == ("tokenizer", "demo")
        assert "'demo' has no" in finding.text


@pytest.mark.parametrize("form", FORMS)
async def test_a_tokenizer_that_cannot_be_loaded_is_named_and_picks_go_on(
    form: str, tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokenizer.json").write_text("{broken", encoding="utf-8")
    monkeypatch.setattr(texts, "RETRY_SECONDS", 0.01)
    async with standing(tmp_path, PODS, models='tokenizer = "."') as stand:
        [finding] = (await stand.diagnose()).findings
        assert (finding.kind, finding.model, finding.pod) == ("tokenizer", "demo", "")
        assert str(tmp_path) in finding.text
        prompt = FORMS[form]("demo")
        picked = await stand.pick(prompt)
        assert picked.reckoned_tokens == picked.prompt_tokens >= 3000
        assert str(tmp_path) in picked.reckoned_because
        code, _ = await stand.refused(scored(stand, prompt))
        assert code is grpc.StatusCode.UNAVAILABLE

        copytree(model_folder, tmp_path, dirs_exist_ok=True)
        while (await stand.pick(prompt)).reckoned_because:
            await asyncio.sleep(0.01)
        assert not (await stand.diagnose()).findings


async def test_a_chat_that_cannot_be_rendered_in_time_is_picked_for_by_length(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copytree(model_folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "chat_template.jinja").write_text(LOOPS, encoding="utf-8")
    monkeypatch.setattr(texts, "RENDER_SECONDS", 0.2)
    one = "[templates]\nworkers = 1\n"
    async with standing(tmp_path, one + PODS, models='tokenizer = "."') as stand:
        picked = await stand.pick(FORMS["chat"]("demo"))
        assert picked.reckoned_tokens == picked.prompt_tokens >= 3000
        assert "takes longer" in picked.reckoned_because


async def test_a_chat_whose_template_cannot_be_compiled_is_picked_for_by_length(
    tmp_path: Path, model_folder: Path
) -> None:
    copytree(model_folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "chat_template.jinja").write_text("{% broken", encoding="utf-8")
    problem = "the chat template is broken: "
    async with standing(tmp_path, PODS, models='tokenizer = "."') as stand:
        chat = FORMS["chat"]("demo")
        for _ in range(3):
            picked = await stand.pick(chat)
            assert picked.reckoned_tokens == picked.prompt_tokens >= 3000
            assert problem in picked.reckoned_because
        code, said = await stand.refused(scored(stand, chat))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert said.startswith("prompt.chat_body")
        assert problem in said
        text = await stand.pick(FORMS["text"]("demo"))
        assert not text.reckoned_because


@pytest.mark.parametrize(
    "prompt",
    [
        pb.Prompt(model="demo", text=""),
        pb.Prompt(chat_body=b'{"model": "demo", "messages": 5}'),
        pb.Prompt(completions_body=b'{"model": "demo", "prompt": {}}'),
    ],
    ids=["empty text", "chat", "completion"],
)
async def test_what_is_wrong_with_a_prompt_is_refused_as_ever(
    prompt: pb.Prompt, tmp_path: Path
) -> None:
    async with standing(tmp_path, PODS) as stand:
        code, _ = await stand.refused(stand.pick(prompt))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
