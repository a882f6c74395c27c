"""Makes a workload (requests with arrival times and token ids) from a trace of block hashes.

The format is Mooncake's (`lab/demo/TRACES.md`): `timestamp` (ms), `input_length`,
`output_length`, and `hash_ids`, one id per block of 512 tokens, equal for equal prefixes. Token ids are
derived from the block ids, so prefixes and lengths are those of the trace.
"""

import gzip
import hashlib
import json
import zlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import IO, cast

BEGINNING = b"\x1f\x8b"

DAMAGED = (gzip.BadGzipFile, zlib.error)
"""Errors of reading a damaged file; one that was cut off raises EOFError."""


def open_gzipped(path: Path) -> IO[bytes]:
    """Open a file, gzipped or not. Raises OSError."""
    with path.open("rb") as file:
        is_gzipped = file.read(len(BEGINNING)) == BEGINNING
    return cast("IO[bytes]", gzip.open(path, "rb")) if is_gzipped else path.open("rb")


TRACE_BLOCK = 512
VOCAB_SIZE = 32_000
RESERVED = 16
"""Number of lowest token ids that no prompt has, like a model's special tokens."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One line of a trace."""

    timestamp: float
    """Arrival, seconds from the trace's start."""
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request of a workload."""

    at: float
    """Modelled seconds from the start."""
    tokens: "array[int]"
    max_tokens: int


def read_trace(path: Path) -> list[TraceRequest]:
    """Read a trace, gzipped or not. Raises OSError, and ValueError with the line's number."""
    requests = []
    with open_gzipped(path) as lines:
        for number, line in enumerate(lines, 1):
            try:
                raw = json.loads(line)
                requests.append(
                    TraceRequest(
                        raw["timestamp"] / 1000,
                        int(raw["input_length"]),
                        int(raw["output_length"]),
                        tuple(raw["hash_ids"]),
                    )
                )
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{path}: line {number}: {error!r}") from error
    return requests


def spread(requests: Sequence[TraceRequest]) -> list[float]:
    """Return arrival times, in seconds: requests of one timestamp are spread evenly up to the next."""
    groups = [
        (stamp, len(list(group))) for stamp, group in groupby(requests, lambda one: one.timestamp)
    ]
    times = []
    for position, (stamp, count) in enumerate(groups):
        following = groups[position + 1][0] if position + 1 < len(groups) else stamp + 3.0
        # Timestamps are about 3 s apart; requests are not spread over a longer pause.
        step = min(following - stamp, 3.0) / count
        times += [stamp + index * step for index in range(count)]
    return times


def block_tokens(hash_id: int) -> "array[int]":
    """Return the 512 token ids of a block of the trace, derived from its id."""
    raw = hashlib.shake_128(hash_id.to_bytes(8, "little")).digest(2 * TRACE_BLOCK)
    span = VOCAB_SIZE - RESERVED
    return array("I", [RESERVED + value % span for value in array("H", raw)])


def build(requests: Sequence[TraceRequest], *, span: float, most_output: int) -> list[Arrival]:
    """Return the workload: the trace's own order and lengths, its time scaled to `span` seconds.

    Answers are cut to `most_output` tokens.
    """
    times = spread(requests)
    length = max(times[-1] - times[0], 1e-9)
    arrivals = []
    for request, time in zip(requests, times, strict=True):
        tokens = array("I")
        for hash_id in request.hash_ids:
            tokens += block_tokens(hash_id)
        arrivals.append(
            Arrival(
                at=(time - times[0]) / length * span,
                tokens=tokens[: request.input_length],
                max_tokens=max(1, min(request.output_length, most_output)),
            )
        )
    return arrivals


def ceilings(requests: Iterable[TraceRequest]) -> list[float]:
    """Return the token hit ratio of one cache that never evicts, up to and with each request.

    No router can do better.
    """
    seen: set[int] = set()
    hits = total = 0
    ratios = []
    for request in requests:
        known = 0
        for hash_id in request.hash_ids:
            if hash_id not in seen:
                break
            known += 1
        hits += min(known * TRACE_BLOCK, request.input_length - 1)
        total += request.input_length
        ratios.append(hits / total if total else 0.0)
        seen.update(request.hash_ids)
    return ratios
