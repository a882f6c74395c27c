"""A running router's spans: of calls over gRPC and HTTP, of streams, and of a gateway's exchanges."""

import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import grpc
import pytest

from tests.fake_http import Answer, FakeHttp
from tests.router.endpoint_picker.gateway import IDS, ONE, PODS, TWO, Gateway, asking, completion
from tests.router.pick_stand import QUIET
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
from warmpath.router.prompt import tokenizer_sources
from warmpath.router.tracing.environment import tracer_of

SCORE, PICK = "warmpath.v1.Router/Score", "warmpath.v1.Router/Pick"
DECISIONS = "warmpath.v1.Router/ListDecisions"
PROCESS = "envoy.service.ext_proc.v3.ExternalProcessor/Process"
BY_IDS = pb.Prompt(model="demo", token_ids_packed=pack_tokens(IDS))


async def test_each_call_has_a_span_in_its_caller_s_trace_with_its_steps(
    tmp_path: Path, model_folder: Path, transport: str
) -> None:
    recorded = Recorded()
    model = f'tokenizer = "{model_folder}"'
    async with asking(
        tmp_path, tracer=recorded.tracer, model=model, transport=transport
    ) as gateway:
        stub, mine = gateway.stub, (SAMPLED,)
        await stub.Score(pb.ScoreRequest(prompt=BY_IDS), timeout=30, metadata=mine)
        spans = await recorded.taken_with(SCORE)
        assert set(spans) == {SCORE, "match", "reply"}
        assert parent(spans[SCORE]) == PARENT
        assert {trace(span) for span in spans.values()} == {TRACE}
        assert spans[SCORE].attributes["warmpath.prompt_tokens"] == len(IDS)
        assert spans[SCORE].attributes["rpc.response.status_code"] == "OK"

        text = pb.Prompt(model="demo", text="a secret of mine")
        await stub.Score(pb.ScoreRequest(prompt=text), timeout=30, metadata=mine)
        spans = await recorded.taken_with(SCORE)
        assert set(spans) == {SCORE, "read", "tokenise", "match", "reply"}
        assert "secret" not in "".join(span.to_json() for span in spans.values())

        named = (*mine, ("x-request-id", "r" * 200))
        picked = await stub.Pick(pb.PickRequest(prompt=BY_IDS), timeout=30, metadata=named)
        decision = await gateway.newest()
        assert (decision.request_id, decision.trace_id) == ("r" * 128, TRACE)
        spans = await recorded.taken_with(PICK)
        assert set(spans) == {PICK, "read", "choose", "reply", DECISIONS}
        assert spans[PICK].attributes["warmpath.booking_id"] == picked.booking_id
        assert spans[PICK].attributes["warmpath.pod"] == picked.candidates[0].pod
        report = pb.ReportRequest(booking_id=picked.booking_id, event=pb.ReportRequest.FINISHED)
        await stub.Report(report, timeout=30, metadata=(NOT_SAMPLED,))

        unknown = pb.Prompt(model="nobody's", token_ids_packed=pack_tokens(IDS))
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.Score(pb.ScoreRequest(prompt=unknown), timeout=30, metadata=mine)
        assert (await recorded.taken_with(SCORE))[SCORE].attributes[
            "rpc.response.status_code"
        ] == "NOT_FOUND"

        await stub.Score(pb.ScoreRequest(prompt=BY_IDS), timeout=30, metadata=(NOT_SAMPLED,))
        assert not recorded.taken()


async def test_an_exchange_is_in_the_trace_of_its_request_whose_header_stays_as_it_is(
    tmp_path: Path,
) -> None:
    recorded = Recorded()
    async with asking(tmp_path, tracer=recorded.tracer) as gateway:
        one = gateway.exchange()
        routed = await one.routed(completion(), SAMPLED, ("x-request-id", "r-1"))
        assert set(routed.endpoints) == {ONE, TWO}
        assert "traceparent" not in {*routed.headers, *routed.removed}
        await one.answered(b"{}", served=routed.endpoints[0])
        await one.ended()
        await gateway.until_nothing_is_left()
        decision = await gateway.newest()
        assert (decision.request_id, decision.trace_id) == ("r-1", TRACE)
        spans = await recorded.taken_with(PROCESS)
        del spans[DECISIONS]
        own = spans[PROCESS]
        assert set(spans) == {PROCESS, "body", "read", "choose"}
        assert {parent(span) for name, span in spans.items() if name != PROCESS} == {
            f"{own.context.span_id:016x}"
        }
        assert (trace(own), parent(own)) == (TRACE, PARENT)
        assert own.attributes["warmpath.outcome"] == "picked"
        assert [event.name for event in own.events] == ["finished"]
        # The gateway's own span, which it tells in the call's metadata, is the nearer one.
        nearer = "00f067aa0ba902b7"
        two = gateway.exchange(traceparent=f"00-{TRACE}-{nearer}-01")
        await two.routed(completion(), SAMPLED)
        two.call.cancel()
        await gateway.until_nothing_is_left()
        assert parent((await recorded.taken_with(PROCESS))[PROCESS]) == nearer


async def test_a_collector_gets_the_spans_by_the_standard_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeHttp(lambda _: Answer(body=b"{}")) as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=k")
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
        tracer = tracer_of({"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}, "1.2")
        async with asking(tmp_path, tracer=tracer) as gateway:
            request = pb.ScoreRequest(prompt=BY_IDS)
            await gateway.stub.Score(request, timeout=30, metadata=(SAMPLED,))
            await gateway.stub.Score(request, timeout=30)
        tracer.close()
    [asked] = collector.asked
    assert (asked.path, asked.headers["x-key"]) == ("/v1/traces", "k")
    [told] = json.loads(asked.body)["resourceSpans"]
    resource = {one["key"]: one["value"] for one in told["resource"]["attributes"]}
    assert resource["service.name"] == {"stringValue": "warmpath"}
    assert resource["deployment.environment"] == {"stringValue": "test"}
    [scope] = told["scopeSpans"]
    assert {span["name"] for span in scope["spans"]} == {SCORE, "match", "reply"}
    assert {span["traceId"] for span in scope["spans"]} == {TRACE}


async def test_an_engine_that_tokenises_is_told_of_the_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_sources, "LAST_SECONDS", 30.0)
    recorded = Recorded()
    answer = json.dumps({"tokens": [1, 2, 3], "count": 3}).encode()
    with FakeHttp(lambda _: Answer(body=answer)) as engine:
        model = f'tokenizer-urls = ["{engine.url}"]'
        tables = f"{QUIET}{PODS}[limits]\ntokenize-seconds = 60\n"
        async with asking(tmp_path, tracer=recorded.tracer, model=model, tables=tables) as gateway:
            for text, mine in (("one", (SAMPLED,)), ("two", ())):
                request = pb.ScoreRequest(prompt=pb.Prompt(model="demo", text=text))
                await gateway.stub.Score(request, timeout=30, metadata=mine)
    spans = recorded.exporter.get_finished_spans()
    steps = {span.context.span_id for span in spans if span.name == "tokenise"}
    requests = [span for span in spans if span.name == "POST /tokenize"]
    assert {span.parent.span_id for span in requests if span.parent} == steps
    assert {span.attributes["http.response.status_code"] for span in requests} == {200}
    # The router's own trial of the engine, at its start, is in nobody's trace.
    told = [asked.headers.get("traceparent") for asked in engine.asked]
    assert [one.rpartition("-")[0] for one in told if one is not None] == [
        f"00-{trace(span)}-{span.context.span_id:016x}" for span in requests
    ]
    assert [trace(span) == TRACE for span in requests] == [True, False]


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
