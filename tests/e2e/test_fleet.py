"""`warmpath fleet`: routers, publishers and a Redis Cluster with one command, and nothing left after it."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.deep

ROOT = Path(__file__).parents[2]


def fleet(out: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "warmpath.cli", "fleet", f"--out={out}", "--json", *options]


def children_of(parent: int, word: bytes) -> list[int]:
    """Return the ids of a process's children whose command line has a word."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    words = {int(one): Path(f"/proc/{one}/cmdline").read_bytes() for one in children}
    return [one for one, line in words.items() if word in line]


def nobody_is_left(folder: Path) -> bool:
    """Return whether no process has the folder in its command line."""
    mine = str(folder).encode()
    for command_line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = command_line.read_bytes()
        except OSError:
            continue
        if mine in words:
            return False
    return True


@pytest.mark.parametrize(
    ("mode", "server", "routers"), [("replica", "valkey", 3), ("shared", "redis", 1)]
)
def test_every_router_knows_every_pod_through_the_cluster(
    tmp_path: Path, mode: str, server: str, routers: int
) -> None:
    options = (f"--mode={mode}", f"--server={server}", f"--routers={routers}", "--requests=12")
    ended = subprocess.run(
        fleet(tmp_path, "--once", *options),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert (told["requests"], told["failed"]) == (12, 0)
    assert len(told["addresses"]["routers"]) == routers
    assert told["routers_agree"]
    assert "12 requests, 0 failed" in ended.stderr
    assert "look into the index" not in ended.stderr
    assert max(told["scores"][0].values()) > 0, "the last prompt lies where it was served"


def test_it_goes_on_until_it_is_asked_to_end(tmp_path: Path) -> None:
    command = fleet(tmp_path, "--requests=2", "--routers=1", "--pods=1")
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        told: dict[str, Any] = json.loads(process.stdout.readline())
        assert told["requests"] == 2
        assert process.poll() is None
        while "Ctrl-C" not in process.stderr.readline():
            pass
        (publisher,) = children_of(process.pid, b"\0warmpath.publisher.main\0")
        os.kill(publisher, signal.SIGKILL)
        said = process.stderr.readline()
        assert said.startswith("publisher-1 ended with -9; its log: ")
        again = shlex.join((sys.executable, "-m", "warmpath.publisher.main", "--pod=pod-1"))
        assert f"; to start it again: {again} " in said
        port = told["addresses"]["redis"].rpartition(":")[2]
        # A server writes its own command line.
        (server,) = children_of(process.pid, f":{port} [cluster]".encode())
        os.kill(server, signal.SIGKILL)
        said = process.stderr.readline()
        assert said.startswith(f"redis-{port} ended with -9; its log: {tmp_path}/redis-{port}.log;")
        assert f"/valkey-server --port {port} " in said.partition("; to start it again: ")[2]
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert nobody_is_left(tmp_path)


@pytest.mark.parametrize(
    "moment", ["starting a cluster", "starting the workers", "starting the routers", "sending"]
)
def test_ctrl_c_while_one_waits_ends_it_and_leaves_nobody(tmp_path: Path, moment: str) -> None:
    command = fleet(tmp_path, "--requests=60", "--routers=1", "--pods=1")
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        while not process.stderr.readline().startswith(moment):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert nobody_is_left(tmp_path)
