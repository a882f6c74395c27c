"""The running router over gRPC, with a real worker's events on real sockets."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor_database import DescriptorDatabase
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.h2grpc.served import ends_with
from tests.router.running_router import metrics_page
from tests.router.service_stand import IDS, Stand, packed, standing
from warmpath.indexer.keys.key import pack_tokens
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb


@pytest.fixture
async def stand(tmp_path: Path, model_folder: Path) -> AsyncIterator[Stand]:
    async with standing(tmp_path, model_folder) as stand:
        yield stand


async def test_every_form_of_a_prompt_scores_what_the_engine_then_finds_cached(
    stand: Stand,
) -> None:
    text = "You are a patient assistant that explains how prefix caching works, step by step. " * 4
    chat = {"model": "demo", "messages": [{"role": "user", "content": text}]}
    completion = {"model": "demo", "prompt": text}
    by_ids = {"model": "demo", "prompt": IDS}
    cases = [
        (by_ids, "completions", packed()),
        (by_ids, "completions", pb.Prompt(model="demo", token_ids=pb.TokenIds(ids=IDS))),
        (completion, "completions", pb.Prompt(model="demo", text=text)),
        (completion, "completions", pb.Prompt(completions_body=json.dumps(completion).encode())),
        (chat, "chat/completions", pb.Prompt(chat_body=json.dumps(chat).encode())),
        (by_ids, "completions", pb.Prompt(completions_body=json.dumps(by_ids).encode())),
    ]  # fmt: skip
    for body, path, _ in cases:
        await stand.generate(body, path)
    await stand.has_blocks(12)
    for body, path, prompt in cases:
        response = await stand.score(prompt)
        [score] = response.scores
        assert score.matched_tokens > 0
        assert score.matched_tokens == await stand.generate(body, path)
        assert score.score == score.matched_tokens
        assert [(tier.tier, tier.tokens) for tier in score.tiers] == [("gpu", score.matched_tokens)]
        assert score.trust.level == pb.Trust.EXACT
        assert score.ready


async def test_full_reports_beyond_the_cache_are_told_and_nothing_is_overclaimed(
    stand: Stand,
) -> None:
    def rank_of(pods: pb.ListPodsResponse) -> pb.Rank:
        return pods.pods[0].ranks[0]

    await stand.generate({"prompt": IDS})
    # The engine's /metrics say 200 blocks; the engine never uses one of them.
    await stand.settled(lambda pods: rank_of(pods).capacity == 199 and rank_of(pods).copies >= 6)
    full = {"vllm_xargs": {"kv_cache_report_mode": "full"}}
    for _ in range(199 // 6 + 1):
        await stand.generate({"prompt": IDS} | full)
    await stand.settled(lambda pods: rank_of(pods).trust.level == pb.Trust.DEGRADED)
    rank = rank_of(await stand.stub.ListPods(pb.ListPodsRequest()))
    assert rank.trust.reason.startswith("more blocks were announced than the cache has")
    assert rank.copies <= rank.capacity
    diagnosis = await stand.stub.Diagnose(pb.DiagnoseRequest())
    assert "drift" in {finding.kind for finding in diagnosis.findings}
    [score] = (await stand.score(pb.Prompt(model="demo", token_ids_packed=pack_tokens(IDS)))).scores
    assert score.matched_tokens == await stand.generate({"prompt": IDS})


async def test_salts_adapters_and_models_never_see_each_others_warmth(stand: Stand) -> None:
    await stand.generate({"model": "demo", "prompt": IDS, "cache_salt": "a"})
    await stand.generate({"model": "tuned", "prompt": IDS[:40]})
    await stand.has_blocks(8)

    async def matched(prompt: pb.Prompt) -> int:
        return (await stand.score(prompt)).scores[0].matched_tokens

    assert await matched(packed()) == 0
    assert await matched(packed(cache_salt="b")) == 0
    assert await matched(packed(cache_salt="a")) == 96
    assert await matched(packed(lora="tuned")) == 32
    by_name = pb.Prompt(model="tuned", token_ids_packed=pack_tokens(IDS))
    assert await matched(by_name) == 32
    assert await matched(packed(lora="tuned", cache_salt="a")) == 0
    alias = pb.Prompt(model="demo-alias", token_ids_packed=pack_tokens(IDS), cache_salt="a")
    assert await matched(alias) == 96


async def test_a_request_that_skips_the_cache_is_told_to_find_nothing(stand: Stand) -> None:
    body = {"model": "demo", "prompt": IDS}
    await stand.generate(body)
    await stand.has_blocks(6)
    skipping = json.dumps(body | {"prompt_logprobs": 1}).encode()
    response = await stand.score(pb.Prompt(completions_body=skipping))
    assert response.scores[0].matched_tokens == 0
    assert await stand.generate(body | {"prompt_logprobs": 1}) == 0


BODY = b'{"model": "demo", "messages": [{"role": "user", "content": "hi"}]}'
INVALID = grpc.StatusCode.INVALID_ARGUMENT
BAD: list[tuple[str, pb.ScoreRequest, grpc.StatusCode, str]] = [
    (name, pb.ScoreRequest(prompt=prompt, strategy=strategy), code, message)
    for name, prompt, strategy, code, message in [
        ("unknown model", pb.Prompt(model="x", text="a"), "", grpc.StatusCode.NOT_FOUND, "'x'; known: demo"),
        ("a long name", pb.Prompt(model="x" * 1024, text="a"), "", grpc.StatusCode.NOT_FOUND, "known: demo"),
        ("no model", pb.Prompt(text="a"), "", INVALID, "prompt.model: is missing"),
        ("empty text", pb.Prompt(model="demo", text=""), "", INVALID, "prompt.text: is empty"),
        ("empty ids", packed([]), "", INVALID, "prompt.token_ids_packed: is empty"),
        ("empty id list", pb.Prompt(model="demo", token_ids=pb.TokenIds()), "", INVALID, "prompt.token_ids.ids: is empty"),
        ("id past the vocabulary", packed([1, 2048]), "", INVALID, "2048; those of 'demo' are 0 to 2047"),
        ("strategy", packed(), "warmest", INVALID, "strategy: is 'warmest'; known: longest-prefix"),
        ("no JSON", pb.Prompt(chat_body=b"{"), "", INVALID, "prompt.chat_body: is not JSON"),
        ("no object", pb.Prompt(chat_body=b"[]"), "", INVALID, "prompt.chat_body: is not a JSON object"),
        ("no messages", pb.Prompt(model="demo", chat_body=b"{}"), "", INVALID, "chat_body.messages"),
        ("a template", pb.Prompt(chat_body=BODY[:-1] + b', "chat_template": "x"}'), "", INVALID, "templates from requests are refused"),
        ("a body of Anthropic's API", pb.Prompt(chat_body=BODY[:-1] + b', "system": "be brief"}'), "", INVALID, "prompt.chat_body.system: is not a field of the chat API"),
        ("a picture", pb.Prompt(chat_body=BODY.replace(b'"hi"', b'[{"type": "image_url"}]')), "", INVALID, "chat_body.messages[0].content[0]: the chat template takes text"),
        ("two models", pb.Prompt(model="tuned", chat_body=BODY), "", INVALID, "but the body's is 'demo'"),
        ("lone surrogate", pb.Prompt(completions_body=b'{"model": "demo", "prompt": "a\\ud800b"}'), "", INVALID, "prompt.completions_body"),
        ("past the bytes", pb.Prompt(model="demo", text="a" * 4001), "", INVALID, "limits.max-prompt-bytes is 4000"),
        ("past the bytes, not the characters", pb.Prompt(model="demo", text="é" * 2001), "", INVALID, "limits.max-prompt-bytes is 4000"),
        ("past the tokens", packed([1] * 1001), "", INVALID, "limits.max-prompt-tokens is 1000"),
        ("text for ids only", pb.Prompt(model="ids-only", text="a"), "", INVALID, "no tokenizer configured"),
        ("two prompts", pb.Prompt(completions_body=b'{"model": "demo", "prompt": ["a", "b"]}'), "", INVALID, "holds several prompts"),
        ("long item", packed(multimodal=[pb.MultimodalItem(hash="h" * 1025, length=1)]), "", INVALID, "prompt.multimodal[0].hash: is longer than 1024 bytes"),
    ]
]  # fmt: skip


async def test_bad_input_gets_a_status_that_names_the_field_and_the_limit(stand: Stand) -> None:
    for _, request, code, message in BAD:
        with ends_with(code, message):
            await stand.stub.Score(request)
    assert (await stand.score(packed())).prompt_tokens == 100, "and nothing is lost"


async def test_a_stream_answers_each_request_by_its_id_and_outlives_bad_ones(stand: Stand) -> None:
    await stand.generate({"model": "demo", "prompt": IDS})
    await stand.has_blocks(6)
    requests = [pb.ScoreRequest(prompt=packed(), request_id=number) for number in range(100)]
    requests[7].prompt.token_ids_packed = b"odd"
    requests[8].prompt.CopyFrom(pb.Prompt(model="demo", text="some text to tokenise"))
    requests[9].prompt.CopyFrom(pb.Prompt())
    replies = {reply.request_id: reply async for reply in stand.stub.ScoreStream(iter(requests))}
    assert sorted(replies) == list(range(100))
    assert replies[7].error.code == INVALID.value[0]
    assert "packed token ids" in replies[7].error.message
    # The library's clients count on this where a prompt of theirs cannot be sent.
    assert replies[9].error.code == INVALID.value[0]
    assert replies[99].response.scores[0].matched_tokens == 96
    assert replies[8].response.covered_chars == len("some text to tokenise")


async def test_a_listed_pod_has_its_running_and_waiting_requests(stand: Stand) -> None:
    async def counts() -> tuple[int, int]:
        [listed] = [
            one
            for one in (await stand.stub.ListPods(pb.ListPodsRequest())).pods
            if one.id == "pod-1"
        ]
        return listed.ranks[0].running, listed.ranks[0].waiting

    picks = [await stand.stub.Pick(pb.PickRequest(prompt=packed(), pods=["pod-1"])) for _ in "ab"]
    assert await counts() == (2, 2)
    for event, left in (("FIRST_TOKEN", (2, 1)), ("FINISHED", (1, 1))):
        await stand.stub.Report(pb.ReportRequest(booking_id=picks[0].booking_id, event=event))
        assert await counts() == left


async def test_an_unknown_pod_never_makes_a_call_fail(stand: Stand) -> None:
    response = await stand.score(packed(), pods=["nowhere", "pod-1"])
    scores = {score.pod: score for score in response.scores}
    assert scores["nowhere"].score == 0
    assert not scores["nowhere"].ready
    assert scores["nowhere"].trust.level == pb.Trust.COLD
    assert scores["pod-1"].ready


async def test_a_question_to_reflection_longer_than_any_name_is_refused(stand: Stand) -> None:
    reflection = reflection_pb2_grpc.ServerReflectionStub(stand.channel)  # type: ignore[no-untyped-call]
    ask = reflection_pb2.ServerReflectionRequest(file_by_filename="x" * (1 << 20))
    with ends_with(INVALID, "more than 4096"):
        await anext(aiter(reflection.ServerReflectionInfo(iter([ask]))))


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection_of_both_versions_tells_the_contracts(stand: Stand, version: str) -> None:
    package = f"grpc.reflection.{version}"

    async def ask(**question: str) -> reflection_pb2.ServerReflectionResponse:
        call = stand.channel.stream_stream(
            f"/{package}.ServerReflection/ServerReflectionInfo",
            reflection_pb2.ServerReflectionRequest.SerializeToString,
            reflection_pb2.ServerReflectionResponse.FromString,
        )
        return await anext(aiter(call(iter([reflection_pb2.ServerReflectionRequest(**question)]))))

    listed = (await ask(list_services="")).list_services_response.service
    names = {service.name for service in listed}
    assert names >= {
        "warmpath.v1.Router", "indexer.v1.IndexerService", f"{package}.ServerReflection", "grpc.health.v1.Health",
    }  # fmt: skip
    database = DescriptorDatabase()
    for name in names:
        told = await ask(file_containing_symbol=name)
        assert told.file_descriptor_response.file_descriptor_proto, name
        for file in told.file_descriptor_response.file_descriptor_proto:
            database.Add(FileDescriptorProto.FromString(file))
    pool = DescriptorPool(database)
    assert pool.FindServiceByName("indexer.v1.IndexerService").methods_by_name["GetPodScores"]
    router = pool.FindServiceByName("warmpath.v1.Router")
    assert router.file.name == "warmpath/v1/router.proto"
    info = pool.FindServiceByName(f"{package}.ServerReflection").methods_by_name
    assert info["ServerReflectionInfo"].input_type.full_name == f"{package}.ServerReflectionRequest"
    told = await ask(file_by_filename="warmpath/v1/router.proto")
    assert told.file_descriptor_response.file_descriptor_proto
    told = await ask(file_containing_symbol="warmpath.v1.Nothing")
    assert told.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


async def test_health_and_metrics_are_served(stand: Stand) -> None:
    health = health_pb2_grpc.HealthStub(stand.channel)  # type: ignore[no-untyped-call]
    for name in ("", "warmpath.v1.Router"):
        reply = await health.Check(health_pb2.HealthCheckRequest(service=name))
        assert reply.status == health_pb2.HealthCheckResponse.SERVING
    await stand.score(packed())
    base = f"http://{stand.router.http_address}"
    text = await metrics_page(stand.router.http_address)
    assert 'warmpath_requests_total{code="OK",method="Score"} 1.0' in text
    for step in ("match", "reply"):
        assert f'warmpath_step_seconds_count{{step="{step}"}} 1.0' in text
    assert 'warmpath_rank_trust{level="exact",pod="pod-1",rank="0"} 1.0' in text
    assert 'warmpath_rank_lag_seconds{pod="pod-1",rank="0"} 0.0' in text
    assert 'warmpath_rank_lag_batches{pod="pod-1",rank="0"} 0.0' in text
    assert 'warmpath_events_total{kind="overflows",pod="pod-1",rank="0"} 0.0' in text
    for path in ("healthz", "readyz"):
        async with stand.http.get(f"{base}/{path}") as response:
            assert response.status == 200
