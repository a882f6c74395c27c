"""Clients, and the gateways of docs/reference/failures.md and docs/start/gateway.md, do what the pages say."""

import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.docs.page_code import Reader, blocks
from tests.docs.test_pages import ROOT
from warmpath import CallError, Client, Prompt
from warmpath.lab.local.gateway import main
from warmpath.lab.local.ports import HeldPorts
from warmpath.proto.errors import Reason, details
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc

PAGE = ROOT / "docs" / "reference" / "failures.md"
PORTS = ("7400", "8101", "8102")
ROWS = re.findall(r"^\| `([A-Z_]+)` \| `([A-Z_]+)`[^|]* \|", PAGE.read_text("utf-8"), re.MULTILINE)
REASONS = {name: grpc.StatusCode[status] for name, status in ROWS}
UNREADABLE = {"BAD_REQUEST", "TOO_LARGE"}
BODY = b'{"model": "demo", "prompt": "hi"}'


@pytest.fixture
def reader(tmp_path: Path, held_ports: HeldPorts) -> Reader:
    made = Reader(tmp_path, PORTS, held_ports)
    [gateway] = blocks(PAGE)
    (tmp_path / "gateway.py").write_text(made.text(gateway))
    return made


def test_the_page_s_gateway_goes_on_without_a_router(reader: Reader) -> None:
    [alone] = blocks(PAGE, "sh")
    assert "chosen by the gateway, after UNAVAILABLE" in reader.run(alone)


class Refusing(router_pb2_grpc.RouterServicer):
    """A router that refuses picks for a reason; those without a prompt only if it is not the prompt's."""

    def __init__(self, code: grpc.StatusCode, reason: str) -> None:
        self._code = code
        self._reason = reason
        self.asked: list[pb.PickRequest] = []

    def Pick(self, request: pb.PickRequest, context: Any) -> pb.PickResponse:  # noqa: N802
        self.asked.append(request)
        if self._reason in UNREADABLE and not request.prompt.completions_body:
            return pb.PickResponse(candidates=[pb.Candidate(pod="pod-1", address="its:1")])
        if self._reason:
            told = details(self._code, "no", Reason.Value(self._reason), retry_seconds=None)
            context.set_trailing_metadata(told)
        context.abort(self._code, "no")
        raise AssertionError


@contextmanager
def serving(servicer: router_pb2_grpc.RouterServicer) -> Iterator[str]:
    with ThreadPoolExecutor(4) as threads:
        server = grpc.server(threads)
        router_pb2_grpc.add_RouterServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(0).wait()


@pytest.mark.parametrize("reason", [*REASONS, ""])
def test_for_each_reason_the_client_does_what_the_page_says(reason: str) -> None:
    code = REASONS.get(reason, grpc.StatusCode.UNKNOWN)
    servicer = Refusing(code, reason)
    with serving(servicer) as address, Client(address) as client:
        asked = client.request(Prompt(completions_body=BODY), otherwise=["other:1"], timeout=600)
        if reason in {"NO_POD", "QUEUE_FULL", "UNKNOWN_MODEL"}:
            with pytest.raises(CallError) as raised, asked:
                pass
            assert raised.value.reason == reason
        else:
            with asked as request:
                assert request.failure is not None
                assert request.failure.reason == (reason or None)
                by_load = reason in UNREADABLE
                assert request.address == ("its:1" if by_load else "other:1")


def test_a_router_that_hangs_is_left_at_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = Client(f"127.0.0.1:{silent.getsockname()[1]}", timeout=0.05)
        with client, client.request("hi", otherwise=["other:1"], timeout=0.05) as request:
            assert request.failure is not None
            assert request.failure.code is grpc.StatusCode.DEADLINE_EXCEEDED


def test_the_page_is_about_all_reasons() -> None:
    assert set(REASONS) == set(Reason.keys()) - {"REASON_UNSPECIFIED"}


ENVOY = ROOT / "docs" / "start" / "gateway.md"
NEEDS_CURL = pytest.mark.skipif(shutil.which("curl") is None, reason="the page needs curl")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def told(headers: str) -> list[str]:
    """Return the figures of the picker in a response's headers; which pod is taken is chance."""
    found = re.findall(r"^x-warmpath-[\w-]+: \S+", headers, re.MULTILINE)
    assert found[0].startswith("x-warmpath-pod: pod-")
    return found[1:]


def pod_of(headers: str) -> str:
    [found] = re.findall(r"^x-warmpath-pod: (\S+)", headers, re.MULTILINE)
    return str(found)


@pytest.fixture(scope="module")
def curl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run what `make gateway` runs, and return the command that it prints to paste."""
    [recipe] = re.findall(r"^gateway: (?:.*\n\t)+@\$\(BIN\)/(warmpath .*)$", MAKEFILE, re.MULTILINE)
    folder = tmp_path_factory.mktemp("gateway")
    (folder / ".venv").symlink_to(ROOT / ".venv")
    process = subprocess.Popen(
        ["bash", "-euc", f"exec .venv/bin/{recipe}"],
        cwd=folder, env=os.environ, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        command = ""
        for line in process.stdout:
            command = line if line.startswith("  curl ") else command
            if line.startswith("Ctrl-C"):
                break
        yield command
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0


def run(command: str) -> str:
    done = subprocess.run(
        ["bash", "-euc", command], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout


@pytest.mark.deep
@NEEDS_CURL
def test_make_gateway_says_what_the_page_shows(curl: str) -> None:
    assert blocks(ENVOY, "sh")[0] == "make gateway\n"
    [shown] = blocks(ENVOY, "text")
    first, second = run(curl), run(curl)
    for answer in (first, second):
        assert answer.startswith("HTTP/1.1 200 OK")
    assert told(first)[0] == "x-warmpath-cached-tokens: 0"
    assert told(second) == told(shown)
    assert pod_of(first) == pod_of(second), "the page says so"


@pytest.mark.deep
@NEEDS_CURL
def test_every_api_is_served_as_the_page_of_apis_says(curl: str) -> None:
    page = (ROOT / "docs" / "reference" / "inference-apis.md").read_text(encoding="utf-8")
    [commands] = re.findall(r"```sh\n(GATEWAY=.*?)```", page, re.DOTALL)
    [address] = re.findall(r"http://[\d.:]+", curl)
    answers = run(re.sub(r"http://[\d.:]+", address, commands)).split("HTTP/1.1 ")[1:]
    assert [answer[:3] for answer in answers] == ["200", "200", "200", "404"]
    first, second = re.findall(r"`x-warmpath-cached-tokens` is (\d+) .* and (\d+) in", page)[0]
    cached = [[int(one.split()[1]) for one in told(answer)[:1]] for answer in answers]
    assert cached == [[int(first)], [int(second)], [0], []], "an error says nothing of the cache"


def test_the_printed_configuration_is_valid(tmp_path: Path) -> None:
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    (tmp_path / "out").mkdir()
    [block] = [one for one in blocks(ENVOY, "sh") if "--print-config" in one]
    done = subprocess.run(
        ["bash", "-euc", block], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert " OK" in done.stdout


def test_the_page_has_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    options = set(re.findall(r"^  (--[\w-]+)", capsys.readouterr().out, re.MULTILINE))
    assert options - set(re.findall(r"--[\w-]+", ENVOY.read_text("utf-8"))) == {
        "--simulate",
        "--token-file",
    }
