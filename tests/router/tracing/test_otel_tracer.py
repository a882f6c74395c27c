"""The tracer of OpenTelemetry: whose child each span is, and what it tells."""

import asyncio

import pytest
from opentelemetry.sdk.resources import SERVICE_NAME
from opentelemetry.trace import SpanKind, StatusCode

from tests.router.tracing.recorded_spans import (
    NOT_SAMPLED,
    PARENT,
    SAMPLED,
    TRACE,
    Recorded,
    parent,
    trace,
)


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


def test_a_call_is_a_child_of_the_caller_s_span_and_its_steps_are_the_call_s(
    recorded: Recorded,
) -> None:
    tracer = recorded.tracer
    with tracer.call("Score", [SAMPLED], {"a": 1}, ago=2.0) as call:
        tracer.past("read", 0.5)
        with tracer.span("tokenise"):
            assert tracer.trace_id() == TRACE
            with tracer.request("POST", "http://me:secret@engine:81/tokenize") as asked:
                told = asked.headers["traceparent"]
                asked.answered(404)
        tracer.note({"b": 2})
        call.ends_with("OK")
    spans = recorded.taken()
    own = f"{spans['Score'].context.span_id:016x}"
    step = f"{spans['tokenise'].context.span_id:016x}"
    assert {name: parent(span) for name, span in spans.items()} == {
        "Score": PARENT, "read": own, "tokenise": own, "POST /tokenize": step,
    }  # fmt: skip
    assert {trace(span) for span in spans.values()} == {TRACE}
    request = spans["POST /tokenize"]
    assert told == f"00-{TRACE}-{request.context.span_id:016x}-01"
    assert request.kind is SpanKind.CLIENT
    assert request.attributes == {
        "http.request.method": "POST", "url.full": "http://engine:81/tokenize",
        "server.address": "engine", "server.port": 81,
        "http.response.status_code": 404, "error.type": "404",
    }  # fmt: skip
    assert request.status.status_code is StatusCode.ERROR
    lasted = {name: span.end_time - span.start_time for name, span in spans.items()}
    assert lasted["read"] == 500_000_000
    assert lasted["Score"] >= 2_000_000_000
    assert spans["Score"].attributes == {"a": 1, "b": 2, "rpc.response.status_code": "OK"}


def test_what_the_caller_does_not_sample_is_told_to_nobody_and_carried_on(
    recorded: Recorded,
) -> None:
    tracer = recorded.tracer
    with tracer.call("Score", [NOT_SAMPLED], {}) as call, tracer.span("tokenise"):
        tracer.past("read", 0.5)
        assert not call.is_sampled
        assert not tracer.trace_id()
        with tracer.request("POST", "http://engine/tokenize") as asked:
            told = asked.headers["traceparent"]
        assert told.startswith(f"00-{TRACE}-")
        assert told.endswith("-00")
    assert not recorded.taken()


def test_work_outside_a_call_has_no_span(recorded: Recorded) -> None:
    with recorded.tracer.span("tokenise"):
        recorded.tracer.past("read", 0.5)
    assert not recorded.tracer.trace_id()
    with recorded.tracer.request("POST", "http://engine/tokenize") as asked:
        assert not asked.headers
    assert not recorded.taken()


@pytest.mark.parametrize(
    "value", ["", "00-zz-zz-01", "00-" + "0" * 32 + "-" + PARENT + "-01", "x" * 9000]
)
def test_a_caller_s_header_that_means_nothing_begins_a_trace(
    recorded: Recorded, value: str
) -> None:
    with recorded.tracer.call("Score", [("traceparent", value), ("k-bin", b"\xff")], {}):
        pass
    span = recorded.taken()["Score"]
    assert not parent(span)
    assert trace(span) != TRACE


def test_no_span_has_the_text_of_an_error(recorded: Recorded) -> None:
    with recorded.tracer.call("Score", [], {}) as call:
        with pytest.raises(ValueError, match="secret"), recorded.tracer.span("tokenise"):
            raise ValueError("the prompt: secret")
        call.ends_with("INTERNAL")
    spans = recorded.taken()
    assert "secret" not in "".join(span.to_json() for span in spans.values())
    assert {span.status.status_code for span in spans.values()} == {StatusCode.ERROR}


def test_a_caller_s_mistake_is_no_failure_of_the_span(recorded: Recorded) -> None:
    with recorded.tracer.call("Score", [], {}) as call:
        call.ends_with("INVALID_ARGUMENT")
    assert recorded.taken()["Score"].status.status_code is StatusCode.UNSET


async def test_calls_side_by_side_keep_their_spans_apart(recorded: Recorded) -> None:
    async def call(name: str) -> None:
        with recorded.tracer.call(name, [], {}):
            await asyncio.sleep(0)
            with recorded.tracer.span(f"step of {name}"):
                await asyncio.sleep(0)

    await asyncio.gather(call("one"), call("two"))
    spans = recorded.taken()
    for name in ("one", "two"):
        assert parent(spans[f"step of {name}"]) == f"{spans[name].context.span_id:016x}"


def test_the_service_is_named_by_the_variables_and_else_after_us(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def name() -> object:
        one = Recorded()
        with one.tracer.call("Score", [], {}):
            pass
        return one.taken()["Score"].resource.attributes[SERVICE_NAME]

    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
    assert name() == "warmpath"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "router-eu")
    assert name() == "router-eu"
