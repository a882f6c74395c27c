"""The plugin that vLLM calls in each of its processes starts one publisher, in one of them."""

import json
import multiprocessing
import os
import select
import subprocess
import sys

import pytest

from publisher import vllm_plugin

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


def test_it_is_registered_with_vllm() -> None:
    import importlib.metadata

    points = importlib.metadata.entry_points(group="vllm.general_plugins")
    assert [point.load() for point in points if point.name == "warmpath_publish"] == [
        vllm_plugin.start
    ]
    assert multiprocessing.current_process().name not in vllm_plugin.FIRST_CORES
