"""Recorded workloads, and workers that serve them on a virtual clock."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from warmpath.lab.simworker.virtual.trace import (
    TraceLine,
    pooled_work,
    read_trace,
    repeated,
    spread,
)


def line(arrival: float, tokens: int, *ids: int) -> TraceLine:
    return TraceLine(arrival, tokens, 5, ids)


def write(path: Path, *lines: Any) -> Path:
    text = "".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in lines)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def recorded(stamp: int, tokens: int, *ids: int) -> dict[str, Any]:
    return {"timestamp": stamp, "input_length": tokens, "output_length": 9, "hash_ids": ids}


def test_requests_of_one_stamp_are_spread_up_to_the_next() -> None:
    lines = [line(stamp, 10) for stamp in (0, 0, 0, 3, 9, 9)]
    assert [one.arrival for one in spread(lines)] == [0, 1, 2, 3, 9, 9.5]


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.gz"])
def test_a_trace_is_read_packed_or_not(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, recorded(0, 600, 3, 4), recorded(2000, 0))
    assert read_trace(path) == [TraceLine(0.0, 600, 9, (3, 4)), TraceLine(2.0, 1, 9, ())]


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([], "is empty"),
        (["{"], "line 1"),
        ([recorded(0, 5), {"timestamp": 1}], "line 2: KeyError.'input_length'"),
        ([recorded(0, 1024, 7)], "line 1: hash_ids has too few blocks"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, lines: list[Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_trace(write(tmp_path / "trace.jsonl", *lines))


def test_a_trace_goes_on_with_ids_of_its_own() -> None:
    lines = [line(10, 600, 0, 1), line(12, 600, 0, 2), line(14, 600, 3)]
    more = list(repeated(lines, 7))
    assert [one.arrival for one in more] == [10, 12, 14, 16, 18, 20, 22]
    assert [one.hash_ids for one in more] == [(0, 1), (0, 2), (3,), (4, 5), (4, 6), (7,), (8, 9)]
    assert more[4].prompt_hashes() == [(4).to_bytes(8, "big"), (6).to_bytes(8, "big")]


def test_pooled_work_is_prefill_with_one_lru_cache() -> None:
    asked: list[tuple[int, int]] = []

    def prefill(new: int, before: int) -> float:
        asked.append((new, before))
        return 1.0

    lines = [
        line(0, 1100, 1, 2, 3), line(1, 1024, 1, 2), line(2, 600, 9, 8), line(3, 1100, 1, 2, 3),
    ]  # fmt: skip
    assert pooled_work(lines, 4, prefill) == 4
    # The second is found whole except its last token; the third pushes out the tail of the first.
    assert asked == [(1100, 0), (1, 1023), (600, 0), (76, 1024)]
