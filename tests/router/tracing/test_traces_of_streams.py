"""The spans of a stream of prompts, and of calls over HTTP."""

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.router.endpoint_picker.gateway import IDS, Gateway, asking
from tests.router.tracing.recorded_spans import (
    NOT_SAMPLED,
    PARENT,
    SAMPLED,
    TRACE,
    Recorded,
    parent,
    trace,
)
from warmpath.indexer.keys.key import pack_tokens
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.calls.service import MOST_MESSAGES

STREAM = "warmpath.v1.Router/ScoreStream"


def by_ids(model: str, number: int) -> pb.ScoreRequest:
    prompt = pb.Prompt(model=model, token_ids_packed=pack_tokens(IDS))
    return pb.ScoreRequest(request_id=number, prompt=prompt)


async def streamed(
    gateway: Gateway, asked: list[pb.ScoreRequest], mine: tuple[str, str]
) -> list[pb.ScoreStreamResponse]:
    """Return the answers to a stream of requests, in their order."""

    async def requests() -> AsyncIterator[pb.ScoreRequest]:
        for one in asked:
            yield one

    call = gateway.stub.ScoreStream(requests(), timeout=60, metadata=(mine,))
    return sorted([one async for one in call], key=lambda one: one.request_id)


@pytest.mark.parametrize("transport", ["nghttp2", "grpcio"])
async def test_a_stream_has_one_span_to_its_end_and_each_message_one_in_it(
    tmp_path: Path, model_folder: Path, transport: str
) -> None:
    recorded = Recorded()
    model = f'tokenizer = "{model_folder}"'
    async with asking(
        tmp_path, tracer=recorded.tracer, model=model, transport=transport
    ) as gateway:
        text = pb.Prompt(model="demo", text="a secret of mine")
        asked = [
            by_ids("demo", 1),
            by_ids("nobody's", 2),
            pb.ScoreRequest(request_id=3, prompt=text),
        ]
        answers = await streamed(gateway, asked, SAMPLED)
        assert [one.HasField("error") for one in answers] == [False, True, False]
    spans = recorded.exporter.get_finished_spans()
    assert "secret" not in "".join(span.to_json() for span in spans)
    assert {trace(span) for span in spans} == {TRACE}
    [stream] = [span for span in spans if span.name == STREAM]
    assert parent(stream) == PARENT
    assert stream.attributes == {
        "rpc.system.name": "grpc", "rpc.method": STREAM,
        "rpc.response.status_code": "OK", "warmpath.messages": 3,
    }  # fmt: skip
    messages = {span.context.span_id: span for span in spans if span.name == "message"}
    assert {parent(span) for span in messages.values()} == {f"{stream.context.span_id:016x}"}
    told = Counter(
        (span.attributes.get("warmpath.model"), span.attributes.get("rpc.response.status_code"))
        for span in messages.values()
    )
    assert told == {("demo", None): 2, (None, "NOT_FOUND"): 1}
    steps = [span for span in spans if span is not stream and span.name != "message"]
    assert {span.name for span in steps} >= {"read", "tokenise", "match", "reply"}
    assert {span.parent.span_id for span in steps if span.parent} <= set(messages)
    assert stream.end_time >= max(span.end_time for span in messages.values())


async def test_of_a_long_stream_the_first_messages_have_spans(tmp_path: Path) -> None:
    recorded = Recorded()
    async with asking(tmp_path, tracer=recorded.tracer) as gateway:
        asked = [by_ids("demo", number) for number in range(MOST_MESSAGES + 10)]
        assert len(await streamed(gateway, asked, SAMPLED)) == len(asked)
        names = Counter(span.name for span in recorded.exporter.get_finished_spans())
        assert names == {
            STREAM: 1, "message": MOST_MESSAGES, "match": MOST_MESSAGES, "reply": MOST_MESSAGES,
        }  # fmt: skip
        assert recorded.taken()[STREAM].attributes["warmpath.messages"] == len(asked)
        await streamed(gateway, asked[:3], NOT_SAMPLED)
        assert not recorded.taken()


async def test_a_call_over_http_has_a_span_in_its_caller_s_trace(tmp_path: Path) -> None:
    recorded = Recorded()
    async with asking(tmp_path, tracer=recorded.tracer) as gateway, aiohttp.ClientSession() as web:
        score = f"http://{gateway.router.http_address}/api/v1/Score"
        prompt = {"prompt": {"model": "demo", "token_ids": {"ids": IDS}}}
        headers = {"Traceparent": SAMPLED[1]}
        async with web.post(score, json=prompt, headers=headers) as answer:
            assert answer.status == 200
        spans = recorded.taken()
        own = spans["POST /api/v1/Score"]
        assert (trace(own), parent(own)) == (TRACE, PARENT)
        assert own.attributes["http.route"] == "/api/v1/Score"
        assert own.attributes["http.response.status_code"] == 200
        assert own.attributes["warmpath.prompt_tokens"] == len(IDS)
        assert parent(spans["match"]) == f"{own.context.span_id:016x}"
        async with web.post(score, data=b"no JSON", headers=headers) as answer:
            assert answer.status == 400
        assert recorded.taken()["POST /api/v1/Score"].attributes["http.response.status_code"] == 400
