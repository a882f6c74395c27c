"""What stands in an engine's environment takes nothing that engines pin; vLLM's plugin starts one publisher."""

import importlib.metadata
import json
import multiprocessing
import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.base_install import run
from warmpath.cli.main import PARTS
from warmpath.publisher import vllm_plugin

CORE = """
import multiprocessing, sys
from publisher import vllm_plugin
multiprocessing.current_process().name = sys.argv[1]
vllm_plugin.start()
sys.stdin.read()
"""


def core(name: str, options: str | None) -> "subprocess.Popen[str]":
    environment = {key: value for key, value in os.environ.items() if key != vllm_plugin.VARIABLE}
    if options is not None:
        environment[vllm_plugin.VARIABLE] = options
    return subprocess.Popen(
        [sys.executable, "-c", CORE, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, env=environment,
    )  # fmt: skip


def test_the_first_engine_core_starts_a_publisher_that_ends_with_it() -> None:
    options = "--pod 'pod a' --model m --events tcp://127.0.0.1:1 --listen 127.0.0.1:0 --metrics-listen ''"
    engine = core("EngineCore_DP0", options)
    assert engine.stdout
    assert engine.stdin
    assert json.loads(engine.stdout.readline())["ready"]
    # The engine dies; its publisher has the same standard output, which ends only with it.
    engine.kill()
    engine.wait()
    assert engine.stdout.read() == ""
    engine.stdin.close()
    engine.stdout.close()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("EngineCore_DP0", None),
        ("MainProcess", "--help"),
        ("EngineCore_DP1", "--help"),
        ("VllmWorker-0", "--help"),
    ],
)
def test_no_other_process_starts_one(name: str, options: str | None) -> None:
    engine = core(name, options)
    assert engine.stdin
    assert engine.stdout
    engine.stdin.close()
    assert engine.wait() == 0
    assert not select.select([engine.stdout], [], [], 0)[0] or engine.stdout.read() == ""
    engine.stdout.close()


def children(parent: int) -> list[int]:
    """Return the processes that a process started, of any of its threads."""
    tasks = Path(f"/proc/{parent}/task").iterdir()
    return [int(pid) for task in tasks for pid in (task / "children").read_text().split()]


@pytest.mark.deep
def test_a_publisher_that_dies_is_started_again() -> None:
    options = (
        "--pod a --model m --events tcp://127.0.0.1:1 --listen 127.0.0.1:0 --metrics-listen ''"
    )
    engine = core("EngineCore_DP0", options)
    assert engine.stdout
    assert engine.stdin
    first = json.loads(engine.stdout.readline())
    [publisher] = children(engine.pid)
    os.kill(publisher, signal.SIGKILL)
    second = json.loads(engine.stdout.readline())
    assert second["ready"]
    assert second["epoch"] != first["epoch"]
    engine.kill()
    engine.wait()
    assert engine.stdout.read() == "", "it ends with the engine"
    engine.stdin.close()
    engine.stdout.close()


def test_options_that_cannot_be_read_are_named_and_the_engine_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(vllm_plugin.VARIABLE, "--pod 'a --model m")
    monkeypatch.setattr(multiprocessing.current_process(), "name", "EngineCore")
    vllm_plugin.start()
    assert "WARMPATH_PUBLISH cannot be read: No closing quotation" in caplog.text


class Lives:
    """Publishers that live for some time each and end with a status; None: they do not even start."""

    def __init__(self, *lives: tuple[float, int | None]) -> None:
        self._lives = list(lives)
        self.now = 0.0
        self.pauses: list[float] = []

    def launch(self) -> int:
        seconds, status = self._lives.pop(0)
        if status is None:
            raise OSError("no room")
        self.now += seconds
        return status

    def keep(self) -> list[float]:
        vllm_plugin.keep(self.launch, clock=lambda: self.now, sleep=self.pauses.append)
        assert not self._lives
        return self.pauses


def test_pauses_grow_until_one_has_run_well(caplog: pytest.LogCaptureFixture) -> None:
    lives = Lives(*[(0.0, 1)] * 8, (100.0, -9), (1.0, 1), (1.0, None), (1.0, 0))
    assert lives.keep() == [1, 2, 4, 8, 16, 32, 60, 60, 1, 2, 4]
    assert "died with status -9; it is started again in 1 s" in caplog.text
    assert "could not be started: no room" in caplog.text


@pytest.mark.parametrize("status", [0, -signal.SIGTERM, -signal.SIGINT, 2])
def test_one_that_was_asked_to_end_or_has_wrong_options_is_not_started_again(status: int) -> None:
    assert Lives((1.0, status)).keep() == []


def test_it_is_registered_with_vllm() -> None:
    import importlib.metadata

    points = importlib.metadata.entry_points(group="vllm.general_plugins")
    assert [point.load() for point in points if point.name == "warmpath_publish"] == [
        vllm_plugin.start
    ]
    assert multiprocessing.current_process().name not in vllm_plugin.FIRST_CORES


def test_the_router_is_an_extra_and_what_it_takes_besides_is_left_out_here() -> None:
    required = importlib.metadata.requires("warmpath-router") or []
    base = {re.split(r"[^\w-]", one)[0] for one in required if "extra ==" not in one}
    router = {
        re.split(r"[^\w-]", one)[0] for one in required if re.search(r"extra == .router.", one)
    }
    module_of = {"grpcio-reflection": "grpc_reflection", "xds-protos": "envoy"}
    assert {module_of.get(name, name.replace("-", "_")) for name in router - base} == set(PARTS)


VLLM = (
    "aiohttp==3.14.5 grpcio==1.85.3 msgspec==0.22.0 numpy==2.3.5 prometheus-client==0.26.0 "
    "protobuf==7.36.2 pyzmq==27.3.0"
)
"""What the environment of vLLM 0.32.0 has of what a publisher needs. `make test-vllm` installs beside all of it."""


def test_an_install_beside_vllm_replaces_none_of_its_packages() -> None:
    has = dict(one.split("==") for one in VLLM.split())
    required = [Requirement(one) for one in importlib.metadata.requires("warmpath-router") or []]
    base = {one.name: one.specifier for one in required if not one.marker}
    assert {name for name in base if name not in has} == {"grpcio-health-checking", "xxhash"}
    assert [name for name in has if has[name] not in base[name]] == []


def test_the_publisher_runs_without_the_routers_parts() -> None:
    done = run("from warmpath.publisher.main import main; main(['--help'])")
    assert "usage: warmpath publish" in done.stdout, done.stderr
    done = run("import warmpath.publisher.assemble, warmpath.publisher.vllm_plugin; print('fine')")
    assert done.stdout == "fine\n", done.stderr


@pytest.mark.parametrize("command", ["serve", "pods", "simulate"])
def test_a_command_whose_parts_are_missing_names_the_extra(command: str) -> None:
    code = "from warmpath.cli.main import main; sys.exit(main(sys.argv[1:]))"
    done = run(code, command, "--help")
    assert done.returncode == 1
    assert "pip install 'warmpath-router[router]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_there_is_is_listed_all_the_same() -> None:
    done = run("from warmpath.cli.main import main; sys.exit(main([]))")
    assert done.returncode == 0, done.stderr
    assert "  publish       Follow an engine" in done.stdout
    assert "  serve         Serve a router" in done.stdout
