"""The tracer: which variables ask for it, whose child each span is, what it tells, and a call's steps."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

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
from warmpath.router.tracing.environment import asked_by, exporters, tracer_of, wrong_endpoint
from warmpath.router.tracing.steps import (
    MOST_CHARS,
    NO_STEPS,
    NO_TRACER,
    Step,
    Steps,
    Tracer,
    request_id_of,
)

VARIABLE, PROTOCOL = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_PROTOCOL"
ENDPOINT = {VARIABLE: "http://127.0.0.1:9"}


@pytest.mark.parametrize(
    ("environ", "asking"),
    [
        ({}, ""),
        (ENDPOINT, VARIABLE),
        ({VARIABLE: ""}, ""),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://h"}, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"),
        ({"OTEL_TRACES_EXPORTER": "console"}, "OTEL_TRACES_EXPORTER"),
        (ENDPOINT | {"OTEL_TRACES_EXPORTER": "none"}, ""),
        (ENDPOINT | {"OTEL_SDK_DISABLED": "True"}, ""),
        (ENDPOINT | {"OTEL_SDK_DISABLED": "false"}, VARIABLE),
        ({"OTEL_SERVICE_NAME": "router"}, ""),
    ],
)
def test_an_endpoint_or_an_exporter_asks_for_traces_unless_the_sdk_is_disabled(
    environ: dict[str, str], asking: str
) -> None:
    assert asked_by(environ) == asking


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        ({}, ["otlp_json_http"]),
        ({PROTOCOL: "grpc"}, ["otlp_proto_grpc"]),
        ({PROTOCOL: "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json"}, ["otlp_json_http"]),
        ({"OTEL_TRACES_EXPORTER": "console, otlp"}, ["console", "otlp_json_http"]),
    ],
)
def test_the_exporter_is_that_of_the_protocol(environ: dict[str, str], names: list[str]) -> None:
    assert exporters(environ) == names


@pytest.mark.parametrize(
    "name", ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"]
)
@pytest.mark.parametrize("value", ["foo", "collector:4318", "ftp://h", "http://"])
def test_an_endpoint_that_is_no_url_is_said_and_the_router_serves_without_traces(
    name: str, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert tracer_of({name: value}, "1") is NO_TRACER
    assert caplog.messages == [f"no traces: {name} is no URL such as http://collector:4318"]


@pytest.mark.parametrize(
    "environ",
    [
        {},
        ENDPOINT,
        {VARIABLE: "HTTPS://collector"},
        ENDPOINT | {VARIABLE: "h:1", PROTOCOL: "grpc"},
        {VARIABLE: "foo", "OTEL_TRACES_EXPORTER": "console"},
        {VARIABLE: "foo", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector/v1/traces"},
    ],
)
def test_an_endpoint_that_its_exporter_takes_is_left_alone(environ: dict[str, str]) -> None:
    assert wrong_endpoint(environ) == ""


def test_a_protocol_without_a_package_is_said_and_the_router_serves_without_traces(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert tracer_of(ENDPOINT | {PROTOCOL: "carrier-pigeon"}, "1") is NO_TRACER
    [line] = caplog.messages
    assert "no traces, though OTEL_EXPORTER_OTLP_ENDPOINT is set" in line
    assert "the exporter carrier-pigeon is installed" in line


def test_a_missing_extra_is_said_with_what_to_install(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "warmpath.router.tracing.otel_tracer", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    assert tracer_of(ENDPOINT, "1") is NO_TRACER
    assert "pip install 'warmpath-router[otel]'" in caplog.messages[0]


def test_nothing_of_opentelemetry_is_loaded_unless_traces_are_asked_for() -> None:
    code = (
        "import sys, warmpath.router.serve, warmpath.router.assemble.running, warmpath.router.endpoint_picker.messages\n"
        "from warmpath.router.tracing.environment import tracer_of\n"
        "tracer_of({'OTEL_SERVICE_NAME': 'router'}, '1')\n"
        "print([name for name in sys.modules if name.partition('.')[0] == 'opentelemetry'])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


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


def timed(*times: float, tracer: Tracer = NO_TRACER) -> tuple[Steps, list[tuple[str, float]]]:
    """Return steps by a clock that shows these times, and what they tell the meter."""
    told: list[tuple[str, float]] = []
    return Steps(lambda *one: told.append(one), tracer, iter(times).__next__), told


class Listening(Tracer):
    is_on = True

    def __init__(self) -> None:
        self.heard: list[tuple[str, float] | str] = []

    def past(self, name: str, seconds: float) -> None:
        self.heard.append((name, seconds))

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        self.heard.append(name)
        yield


def test_each_step_is_timed_by_the_clock_also_one_that_fails() -> None:
    steps, told = timed(1.0, 3.0, 3.0, 6.0)
    steps.took(Step.READ, steps.begin())
    with pytest.raises(TimeoutError), steps.step(Step.QUEUE):
        raise TimeoutError
    assert told == [("read", 2.0), ("queue", 3.0)]


def test_a_trace_has_every_step_as_a_span() -> None:
    tracer = Listening()
    steps, told = timed(0.0, 1.0, 2.0, 3.0, tracer=tracer)
    steps.took(Step.READ, steps.begin())
    with steps.step(Step.TOKENISE):
        pass
    assert tracer.heard == [("read", 1.0), "tokenise"]
    assert told == [("read", 1.0), ("tokenise", 1.0)]


def test_a_part_outside_a_router_times_nothing() -> None:
    NO_STEPS.took(Step.READ, NO_STEPS.begin())
    with NO_STEPS.step(Step.QUEUE):
        pass


def test_the_id_of_a_request_is_the_first_x_request_id_and_its_beginning_where_it_is_long() -> None:
    assert request_id_of([("a", "b"), ("x-request-id", "one"), ("x-request-id", "two")]) == "one"
    assert request_id_of([("x-request-id", "r" * 9000)]) == "r" * MOST_CHARS
    assert not request_id_of([("x-request-id", b"\xff"), ("a", "b")])
