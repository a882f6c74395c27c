"""Reads traffic to simulate: Mooncake's traces, and users' own access logs.

A file has one JSON object per line, gzipped or not. `docs/simulate.md` describes the two formats; the
fields of the first line with a timestamp decide which one it is. Single lines that cannot be read are
left out and counted. The blocks of a line become chained keys, so that equal keys mean equal prefixes.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import msgspec

from indexer.unreadable import UNREADABLE
from router.commands.gzipped import DAMAGED, open_gzipped
from router.commands.simulate import bad_line
from router.commands.simulate.left_out import LeftOut
from router.commands.simulate.log_line import WANTED
from router.commands.simulate.log_requests import LogRequests
from router.commands.simulate.logged_request import LoggedTraffic, with_affinity
from router.commands.simulate.mooncake_requests import MooncakeRequests

MOST_LINE_BYTES = 64 << 20
MOST_BLOCKS = 50_000_000
"""The most blocks of all requests together; a block takes some 100 bytes."""
BEGINNING = 100
"""In how many of the first lines a timestamp is looked for."""


def read_traffic(path: Path, most: int = 0) -> LoggedTraffic:
    """Return the traffic of a file, or of its first `most` lines unless `most` is 0.

    Raises OSError, and ValueError that names the file and, for bad lines, their numbers.
    """
    try:
        return _read(path, most)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _read(path: Path, most: int) -> LoggedTraffic:
    reader: MooncakeRequests | LogRequests = MooncakeRequests()
    if not _is_mooncake(path, most):
        reader = LogRequests(raw for _, raw in _lines(path, most))
    left_out = LeftOut()
    requests = []
    blocks = 0
    for number, raw in _lines(path, most):
        try:
            request = reader.request(raw)
        except ValueError as error:
            left_out.add(number, str(error))
            continue
        if request is None:
            continue
        blocks += len(request.keys)
        if blocks > MOST_BLOCKS:
            problem = f"more than {MOST_BLOCKS} blocks; take fewer lines (--requests)"
            raise ValueError(f"line {number}: {problem}")
        requests.append(request)
    left_out.check(len(requests))
    if not requests:
        raise ValueError("has no request with a body")
    return LoggedTraffic(
        with_affinity(sorted(requests, key=lambda one: one.at)),
        reader.block_size,
        reader.is_approximate,
        left_out.count,
        left_out.first,
    )


def _is_mooncake(path: Path, most: int) -> bool:
    """Return whether a file is a trace of Mooncake's. Raises ValueError if it is no log either."""
    problem = ""
    for number, raw in islice(_lines(path, most), BEGINNING):
        try:
            known = msgspec.json.decode(raw)
        except UNREADABLE as error:
            problem = problem or f"line {number}: {error}. {WANTED}"
            continue
        if isinstance(known, dict) and "timestamp" in known:
            return "input_length" in known
        problem = problem or f"line {number}: has no timestamp{_named(known)}. {WANTED}"
    raise ValueError(problem or "is empty")


def _named(line: object) -> str:
    """Return the names of a line's first fields, in words."""
    return (
        f", but {', '.join(map(bad_line.shown, islice(line, 8)))}" if isinstance(line, dict) else ""
    )


def _lines(path: Path, most: int) -> Iterator[tuple[int, bytes]]:
    """Yield a file's lines that are not empty, or the first `most` of them, with their numbers."""
    with open_gzipped(path) as file:
        number = found = 0
        while not most or found < most:
            number += 1
            try:
                line = file.readline(MOST_LINE_BYTES + 1)
            except (EOFError, *DAMAGED) as error:
                raise ValueError(f"line {number}: {error}") from error
            if not line:
                return
            if len(line) > MOST_LINE_BYTES:
                raise ValueError(f"line {number}: longer than {MOST_LINE_BYTES} bytes")
            if line.strip():
                found += 1
                yield number, line
