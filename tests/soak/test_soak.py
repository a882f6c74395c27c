"""The verdict of the soak of ingestion."""

from typing import Any

import pytest

from tests.soak.soak import passes

GOOD = {"wrong": 0, "trust": {"exact": 60, "degraded": 4}, "growth": 0.001}


def test_exact_ranks_that_are_right_pass() -> None:
    assert passes(GOOD)


@pytest.mark.parametrize(
    "change", [{"wrong": 1}, {"trust": {"degraded": 64}}, {"trust": {}}, {"growth": 0.02}]
)
def test_a_wrong_rank_no_exact_rank_or_a_leak_fail(change: dict[str, Any]) -> None:
    assert not passes(GOOD | change)
