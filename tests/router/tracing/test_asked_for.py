"""Which variables ask for traces, and what the log says where there can be none."""

import subprocess
import sys

import pytest

from warmpath.router.tracing.environment import asked_by, exporters, tracer_of, wrong_endpoint
from warmpath.router.tracing.tracer import NO_TRACER

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}


@pytest.mark.parametrize(
    ("environ", "asking"),
    [
        ({}, ""),
        (ENDPOINT, "OTEL_EXPORTER_OTLP_ENDPOINT"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, ""),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://h"}, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"),
        ({"OTEL_TRACES_EXPORTER": "console"}, "OTEL_TRACES_EXPORTER"),
        (ENDPOINT | {"OTEL_TRACES_EXPORTER": "none"}, ""),
        (ENDPOINT | {"OTEL_SDK_DISABLED": "True"}, ""),
        (ENDPOINT | {"OTEL_SDK_DISABLED": "false"}, "OTEL_EXPORTER_OTLP_ENDPOINT"),
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
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, ["otlp_proto_grpc"]),
        (
            {
                "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
                "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json",
            },
            ["otlp_json_http"],
        ),
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
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "HTTPS://collector"},
        ENDPOINT | {"OTEL_EXPORTER_OTLP_ENDPOINT": "h:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "foo", "OTEL_TRACES_EXPORTER": "console"},
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": "foo",
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector/v1/traces",
        },
    ],
)
def test_an_endpoint_that_its_exporter_takes_is_left_alone(environ: dict[str, str]) -> None:
    assert wrong_endpoint(environ) == ""


def test_a_protocol_without_a_package_is_said_and_the_router_serves_without_traces(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert tracer_of(ENDPOINT | {"OTEL_EXPORTER_OTLP_PROTOCOL": "carrier-pigeon"}, "1") is NO_TRACER
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
