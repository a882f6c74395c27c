"""`warmpath top` shows pods, hits and picks within the terminal's columns, once or until q."""

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from io import StringIO

import grpc
import pytest
from rich.console import Console

from warmpath.cli.asking import unready
from warmpath.cli.top import Seen, frame, main
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc

EXACT = pb.Trust(level=pb.Trust.EXACT, reason="followed from the first batch")
STALE = pb.Trust(level=pb.Trust.STALE, reason="no connection to its events")


def pod(name: str, *, ready: bool = True, ranks: int = 1) -> pb.Pod:
    held = {"copies": 250, "capacity": 1000, "running": 7, "waiting": 3}
    return pb.Pod(
        id=name,
        model="m",
        ready=ready,
        status="" if ready else "/health answers 503",
        ranks=[
            pb.Rank(rank=number, trust=EXACT if ready else STALE, **held) for number in range(ranks)
        ],
    )


def diagnosis(*names: str) -> pb.DiagnoseResponse:
    return pb.DiagnoseResponse(
        attributions=[
            pb.Attribution(
                pod=name, model="m", prompt_tokens=1000, captured_tokens=600, average_tokens=200
            )
            for name in names
        ]
    )


def decisions(number: int) -> pb.ListDecisionsResponse:
    one = pb.Decision(
        at=1e9, model="m", prompt_tokens=1234, reason="it holds most of the prompt " * 9
    )
    one.candidates.add(pod="pod-1", matched_tokens=999)
    return pb.ListDecisionsResponse(decisions=[one] * number)


def shown(*pods: pb.Pod, rows: int | None = None, problem: str = "") -> str:
    seen = Seen(
        datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        pb.ListPodsResponse(pods=pods),
        diagnosis(*(one.id for one in pods)),
        decisions(2),
    )
    console = Console(width=80, height=24, record=True, file=StringIO())
    console.print(frame(seen, "127.0.0.1:7400", rows=rows, problem=problem))
    return console.export_text()


def test_a_frame_has_the_figures_of_each_rank_beside_those_of_pods_in_turn() -> None:
    text = shown(pod("pod-1"), pod("pod-2", ranks=2))
    assert "2 of 2 pods ready" in text
    assert "hits 60.0% of 2,000 prompt tokens; pods in turn 20.0%: +800 tokens" in text
    [row] = [line for line in text.splitlines() if line.startswith("pod-1 ")]
    assert row.split() == [
        "pod-1",
        "yes",
        "exact",
        "25%",
        "of",
        "1,000",
        "7",
        "3",
        "60.0%",
        "20.0%",
    ]
    assert "pod-2 0" in text
    assert "pod-2 1" in text
    assert "1,234" in text
    assert "it holds most" in text


def test_a_pod_that_is_not_ready_has_its_reason() -> None:
    text = shown(pod("pod-1"), pod("pod-2", ready=False))
    assert "1 of 2 pods ready" in text
    assert "pod-2: /health answers 503; no connection to its events" in text


def test_a_pod_that_is_well_and_has_no_events_is_not_said_to_be_unwell() -> None:
    silent = pod("pod-1", ready=False)
    silent.status = "/health answers"
    assert unready(silent) == STALE.reason


def test_a_frame_fits_into_80_columns_and_says_what_it_leaves_out() -> None:
    many = [pod(f"a-pod-with-a-very-long-name-{number}", ready=number > 9) for number in range(40)]
    text = shown(*many, rows=5, problem="no router answers")
    lines = text.splitlines()
    assert max(len(line) for line in lines) <= 80
    assert len(lines) <= 24
    assert "and 35 more" in text
    assert "no router answers" in text


LONG_NAME = "vllm-llama-3-70b-7f9c6d5b48-x2x9z"
PROGRAM = """
import fcntl, sys, termios
from warmpath.cli.top import main
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
sys.exit(main(sys.argv[1:]))
"""
"""Runs `top` with standard input as the terminal that sends it signals."""


class Router(router_pb2_grpc.RouterServicer):
    """Answers the calls of `top`."""

    def ListPods(self, request: object, context: object) -> pb.ListPodsResponse:  # noqa: N802
        del request, context
        return pb.ListPodsResponse(pods=[pod("pod-1"), pod(LONG_NAME)])

    def Diagnose(self, request: object, context: object) -> pb.DiagnoseResponse:  # noqa: N802
        del request, context
        return diagnosis("pod-1")

    def ListDecisions(  # noqa: N802
        self, request: object, context: object
    ) -> pb.ListDecisionsResponse:
        del request, context
        return decisions(1)


@pytest.fixture
def router() -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(2))
    router_pb2_grpc.add_RouterServicer_to_server(Router(), server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None)


def test_once_prints_one_frame(router: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--router", router, "--once"]) == 0
    assert "2 of 2 pods ready" in capsys.readouterr().out


def test_a_pipe_gets_one_frame_with_whole_names_and_reasons(
    router: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--router", router]) == 0
    printed = capsys.readouterr().out
    assert decisions(1).decisions[0].reason.strip() in printed
    assert LONG_NAME in printed
    assert "\x1b" not in printed


def test_a_router_that_is_not_there_ends_it(
    held_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--router", f"127.0.0.1:{held_port}", "--once"]) == 3
    assert "nothing listens there; start one" in capsys.readouterr().err


@pytest.mark.parametrize("key", [b"q", b"\x03"], ids=["q", "ctrl-c"])
def test_it_lives_in_the_terminal_until_a_key_ends_it_and_leaves_it_as_it_was(
    router: str, key: bytes
) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "--router", router],
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"},
    )  # fmt: skip
    os.close(theirs)
    try:
        text = read_until(ours, b"pods in turn")
        assert b"\x1b[?1049h" in text, "the terminal's other screen"
        os.write(ours, key)
        assert b"\x1b[?1049l" in read_until(ours, b"\x1b[?1049l")
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def read_until(terminal: int, sign: bytes) -> bytes:
    text, ends = b"", time.monotonic() + 60
    while sign not in text:
        ready, _, _ = select.select([terminal], [], [], max(0.0, ends - time.monotonic()))
        assert ready, text
        text += os.read(terminal, 4096)
    return text
