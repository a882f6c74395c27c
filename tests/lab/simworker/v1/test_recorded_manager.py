"""The calls of vLLM's own cache manager, recorded, give the same with ours."""

from pathlib import Path

import pytest

from tests.lab.simworker.v1.manager_replay import HYBRID, Operations, recorded
from tests.recordings import KV_CACHE_MANAGER


@pytest.mark.parametrize(("recording", "operations"), [(KV_CACHE_MANAGER, 4174), (HYBRID, 2218)])
def test_every_outcome_and_state_is_vllms(recording: Path, operations: int) -> None:
    replay = Operations()
    number = 0
    for number, line in enumerate(recorded(recording), 1):
        got = replay.step(line["op"], line["args"])
        assert got == {name: line[name] for name in got}, (number, line["op"])
    assert number == operations
