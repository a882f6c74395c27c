"""`warmpath demo`, `fleet` and `simulate`: they end with what they promise, and leave nothing running."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

import pytest


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "warmpath.cli", *words]


class Started(subprocess.Popen[str]):
    """A running command. What it starts has a mark in its environment, too."""

    def __init__(self, *words: str, **pipes: Any) -> None:
        self.mark = uuid.uuid4().hex
        environment = os.environ | {"WARMPATH_TEST": self.mark}
        super().__init__(command(*words), text=True, env=environment, **pipes)

    def running(self) -> list[int]:
        """Return the processes with the mark that still run."""
        found = []
        for environ in Path("/proc").glob("[0-9]*/environ"):
            try:
                if self.mark.encode() in environ.read_bytes():
                    found.append(int(environ.parent.name))
            except OSError:
                continue  # it has ended meanwhile
        return found


def children_of(parent: int, word: bytes) -> list[int]:
    """Return the ids of a process's children whose command line has a word."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    words = {int(one): Path(f"/proc/{one}/cmdline").read_bytes() for one in children}
    return [one for one, line in words.items() if word in line]


def ended(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*words), capture_output=True, text=True, timeout=200, check=False)


def demo(out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return ended("demo", f"--out={out}", "--pods=2", *options)


@pytest.mark.deep
@pytest.mark.parametrize("kill", [False, True], ids=["calm", "a-pod-killed"])
def test_a_demo_ends_with_a_table_a_page_and_figures(tmp_path: Path, kill: bool) -> None:
    options = ["--requests=20", "--agents=3", "--span=30", "--speed=20", "--most-output=20"]
    if kill:
        options += ["--kill-pod", "--policies=warmpath", "--span=120"]
    done = demo(tmp_path, *options)
    assert done.returncode == 0, done.stderr
    assert "hit ratio" in done.stdout
    assert "report: " in done.stdout
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 5
    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    policies = results["policies"]
    warm = policies["warmpath"]
    if kill:
        assert all(one["requests"] + one["failed"] == 62 for one in policies.values())
        # Whether a request was on its way to the pod that died is chance.
        return
    assert set(policies) == {"round-robin", "least-load", "llmd-token", "warmpath"}
    assert "warmpath beside llmd-token: sessions " in " ".join(done.stdout.split())
    assert all(one["requests"] == 62 and not one["failed"] for one in policies.values())
    # On two pods and so few requests the others may find as much by chance.
    # The ceiling counts blocks of the recordings, which are larger than those of the pods.
    assert 0.75 * results["ceiling"] < warm["hit_ratio"] <= results["ceiling"] + 0.005
    assert warm["sessions"]["p50"] > 0.9 * results["alone"][0]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--policies=best", "--policies: best; known:"),
        pytest.param("--speed=0", "--speed: must be above 0", marks=pytest.mark.deep),
        pytest.param("--trace=/nowhere", "/nowhere", marks=pytest.mark.deep),
        pytest.param("--requests=-1", "--requests: must be 0 or more", marks=pytest.mark.deep),
    ],
)
def test_bad_options_of_a_demo_are_named(tmp_path: Path, option: str, message: str) -> None:
    done = demo(tmp_path, option)
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.deep
@pytest.mark.parametrize(
    ("sent", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["Ctrl-C", "SIGTERM"]
)
def test_a_demo_that_is_ended_early_stops_all_that_it_started(
    tmp_path: Path, sent: signal.Signals, status: int
) -> None:
    # As slow as time itself: it cannot be over before it is ended.
    slow = ("--policies=warmpath", "--speed=1")
    demo = Started("demo", f"--out={tmp_path}", *slow, stdout=DEVNULL)
    # The demo itself, four workers, and the router; it is ready to be asked once it logs.
    while len(demo.running()) < 6 or not (tmp_path / "router.log").read_text():
        assert demo.poll() is None
        time.sleep(0.02)
    demo.send_signal(sent)
    assert demo.wait(timeout=60) == status
    assert demo.running() == []


@pytest.mark.deep
def test_a_demo_whose_requests_all_fail_says_why_and_fails(tmp_path: Path) -> None:
    done = demo(
        tmp_path, "--requests=5", "--agents=1", "--blocks=5", "--policies=warmpath", "--speed=50"
    )
    assert done.returncode == 1
    assert "every request failed: 400" in done.stderr


def fleet(out: Path, *options: str) -> tuple[str, ...]:
    return "fleet", f"--out={out}", "--json", *options


@pytest.mark.deep
@pytest.mark.parametrize(
    ("mode", "server", "routers"), [("replica", "valkey", 3), ("shared", "redis", 1)]
)
def test_every_router_of_a_fleet_knows_every_pod_through_the_cluster(
    tmp_path: Path, mode: str, server: str, routers: int
) -> None:
    options = (f"--mode={mode}", f"--server={server}", f"--routers={routers}", "--requests=12")
    done = ended(*fleet(tmp_path, "--once", *options))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["requests"], told["failed"]) == (12, 0)
    assert len(told["addresses"]["routers"]) == routers
    assert told["routers_agree"]
    assert "12 requests, 0 failed" in done.stderr
    assert "look into the index" not in done.stderr
    assert max(told["scores"][0].values()) > 0, "the last prompt lies where it was served"


@pytest.mark.deep
def test_a_fleet_goes_on_until_it_is_asked_to_end(tmp_path: Path) -> None:
    options = fleet(tmp_path, "--requests=2", "--routers=1", "--pods=1")
    with Started(*options, stdout=PIPE, stderr=PIPE) as process:
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
    assert process.running() == []


@pytest.mark.deep
@pytest.mark.parametrize(
    "moment", ["starting a cluster", "starting the workers", "starting the routers", "sending"]
)
def test_ctrl_c_while_one_waits_ends_a_fleet_and_leaves_nobody(tmp_path: Path, moment: str) -> None:
    options = fleet(tmp_path, "--requests=60", "--routers=1", "--pods=1")
    with Started(*options, stdout=DEVNULL, stderr=PIPE) as process:
        assert process.stderr is not None
        while not process.stderr.readline().startswith(moment):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert process.running() == []


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_sigterm_ends_every_process_of_a_simulation() -> None:
    words = [
        "--traffic",
        "docs",
        "--pods",
        "8,4",
        "--requests",
        "100000",
        "--policy",
        "warmpath",
        "--processes",
        "2",
    ]
    process = Started("simulate", *words, stdout=DEVNULL, stderr=DEVNULL)
    try:
        # Itself, what tracks its resources, and two that simulate.
        while len(process.running()) < 4:
            assert process.poll() is None
            time.sleep(0.05)
        process.terminate()
        assert process.wait() == 128 + signal.SIGTERM
        while process.running():
            time.sleep(0.05)
    finally:
        for one in process.running():
            os.kill(one, signal.SIGKILL)
