"""Replay a recording of vLLM's own `KVCacheManager`, and compare every outcome.

Each line of a recording is a JSON object: an operation, its arguments, its result, and the state after
it (free blocks, usage, the free queue).

Some operations may have more:

- `new_manager` may have `groups`, a list of `{"kind": "full_attention" | "sliding_window", "block_size",
  "sliding_window", "is_eagle_group"}`, and any of `scheduler_block_size`, `hash_block_size`,
  `max_in_flight_tokens`, `num_prefill_lookahead`, `prefix_cache_retention_interval`. Block ids are then
  lists of lists, one for each group.
- `get_computed_blocks` may return a `shared_prefix_boundary`, which the request then has.
- `allocate_slots` takes `num_draft_tokens`; `in_flight` sets a request's `num_in_flight_tokens`.
"""

import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from warmpath.lab.simworker.sampler import open_text
from warmpath.lab.simworker.v1.replay.trace_operations import (
    BadTraceError,
    TraceArgs,
    TraceOperations,
)

__all__ = ["BadTraceError", "Difference", "ReplayResult", "read_trace", "replay_trace"]


@dataclass(frozen=True, slots=True)
class Difference:
    """One outcome that differs from the recorded one."""

    line: int
    """Number of the line, from 1."""
    op: str
    field: str
    expected: Any
    got: Any


@dataclass(slots=True)
class ReplayResult:
    """The result of a replay. Only the first differences are kept; all are counted."""

    operations: int = 0
    differences: int = 0
    first_differences: list[Difference] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def verify(path: Path) -> dict[str, Any]:
    """Replay a file for `warmpath verify`. Raises BadTraceError or OSError."""
    return replay_trace(read_trace(path)).to_json()


def read_trace(path: Path) -> Iterator[str]:
    """Yield the lines of a file, gzip or not. Raises BadTraceError or OSError."""
    try:
        with open_text(path) as lines:
            yield from lines
    except (EOFError, zlib.error, UnicodeDecodeError) as error:
        raise BadTraceError(f"the file is cut off or damaged: {error}") from error


def replay_trace(lines: Iterable[str], keep: int = 20) -> ReplayResult:
    """Replay a recording; keep the first `keep` differences. Raises BadTraceError."""
    result = ReplayResult()
    replay = TraceOperations()
    for number, text in enumerate(lines, 1):
        try:
            line = json.loads(text)
        except ValueError as error:
            raise BadTraceError(f"line {number}: is not JSON: {error}") from error
        if not isinstance(line, dict):
            raise BadTraceError(f"line {number}: is not a JSON object")
        for key in ("op", "args", "out", "free_blocks", "usage", "free_queue"):
            if key not in line:
                raise BadTraceError(f"line {number}: {key}: missing")
        try:
            got = replay.step(line["op"], TraceArgs(line["args"]))
        except BadTraceError as error:
            raise BadTraceError(f"line {number}: {line['op']}: {error}") from error
        except (IndexError, ValueError) as error:
            # Numbers that no real caller passes, for which the manager has no error of its own.
            raise BadTraceError(f"line {number}: {line['op']}: args: {error}") from error
        result.operations += 1
        for difference in _compare(number, line, got):
            result.differences += 1
            if len(result.first_differences) < keep:
                result.first_differences.append(difference)
    return result


def _compare(number: int, line: dict[str, Any], got: dict[str, Any]) -> Iterator[Difference]:
    """Yield the differences; a returned object is compared field by field."""
    for key, value in got.items():
        expected = line[key]
        if key == "out" and isinstance(expected, dict) and isinstance(value, dict):
            for name in sorted({*expected, *value}):
                if expected.get(name) != value.get(name):
                    yield Difference(
                        number, line["op"], f"out.{name}", expected.get(name), value.get(name)
                    )
        elif expected != value:
            yield Difference(number, line["op"], key, expected, value)
