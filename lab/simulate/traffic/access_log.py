"""Reads traffic to simulate: Mooncake's traces, recorded sessions, and users' own access logs.

A file has one JSON object per line, gzipped or not. `docs/guides/simulate-and-verify.md` describes the
formats; the first lines that have one's fields decide which one it is. Single lines that are wrong are
left out and counted. The blocks of a line become chained keys, so that equal keys mean equal prefixes.
"""

import codecs
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from statistics import median_low

import msgspec

from warmpath.lab.local.gzipped import DAMAGED, open_gzipped
from warmpath.lab.simulate.traffic.log_line import WANTED
from warmpath.lab.simulate.traffic.log_requests import LogRequests, MooncakeRequests
from warmpath.lab.simulate.traffic.requests import LoggedRequest, LoggedTraffic, with_affinity
from warmpath.lab.simulate.traffic.sessions import SessionRequests
from warmpath.process.bytes import UNREADABLE
from warmpath.router.shadow.gateway_line import NO_OBJECT, shown

MOST_SHARE = 0.05
"""The largest share of bad lines with which the others still stand for the traffic."""
MOST_TOLD = 3
"""The most bad lines that a message names."""


class LeftOut:
    """Counts bad lines and keeps the first reasons, which quote no prompt."""

    def __init__(self) -> None:
        self.count = 0
        self._first: list[tuple[int, str]] = []

    @property
    def first(self) -> list[str]:
        """The first bad lines: each one's number, and why it is left out."""
        return [f"line {number}: {problem}" for number, problem in self._first]

    def add(self, number: int, problem: str) -> None:
        self.count += 1
        self._first = sorted([*self._first, (number, problem)])[:MOST_TOLD]

    def check(self, good: int, *notes: str) -> None:
        """Raise ValueError, with the notes, if too many lines were bad beside this many good ones."""
        lines = self.count + good
        if self.count <= MOST_SHARE * lines:
            return
        share = f"{self.count} of {lines} lines are bad, more than {MOST_SHARE:.0%}"
        raise ValueError("; ".join([*self.first, *([share] if lines > 1 else []), *notes]))


MOST_LINE_BYTES = 64 << 20
MOST_BLOCKS = 50_000_000
"""The most blocks of all requests together; a block takes some 100 bytes."""
MOST_APART = 366 * 86400.0
"""Most seconds between a request and the middle one of a file."""
BEGINNING = 100
"""How many of the first lines decide which format a file has."""
MOONCAKE, RECORDED, LOG = "a Mooncake trace", "recorded sessions", "an access log"


def read_traffic(path: Path, most: int = 0) -> LoggedTraffic:
    """Return the traffic of a file, or of its first `most` lines unless `most` is 0.

    Raises OSError, and ValueError that names the file and, for bad lines, their numbers.
    """
    try:
        return _read(path, most)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _read(path: Path, most: int) -> LoggedTraffic:
    reader: MooncakeRequests | LogRequests | SessionRequests
    form = _form(path, most)
    if form == MOONCAKE:
        reader = MooncakeRequests()
    elif form == RECORDED:
        reader = SessionRequests()
    else:
        reader = LogRequests(raw for _, raw in _lines(path, most))
    left_out = LeftOut()
    numbered: list[tuple[int, LoggedRequest]] = []
    blocks = 0
    for number, raw in _lines(path, most):
        try:
            found = [*reader.requests(raw)]
        except ValueError as error:
            left_out.add(number, str(error))
            continue
        blocks += sum(len(request.keys) for request in found)
        if blocks > MOST_BLOCKS:
            problem = f"more than {MOST_BLOCKS} blocks; take fewer lines (--requests)"
            raise ValueError(f"line {number}: {problem}")
        numbered += [(number, request) for request in found]
    requests = _of_one_time(numbered, left_out)
    notes = [f"the file was taken for {form} by its first lines"]
    if most:
        notes.append(f"only the first {most} lines count (--requests)")
    left_out.check(len(requests), *notes)
    if not requests:
        raise ValueError("has no request with a body")
    return LoggedTraffic(
        with_affinity(sorted(requests, key=lambda one: one.at)),
        reader.block_size,
        reader.is_approximate,
        left_out.count,
        left_out.first,
        is_closed=form == RECORDED,
    )


def _of_one_time(
    numbered: Sequence[tuple[int, LoggedRequest]], left_out: LeftOut
) -> list[LoggedRequest]:
    """Return the requests within MOST_APART of the middle one; leave out the lines of the others.

    One time of another kind, such as seconds since a start among those since 1970, would stretch the
    whole traffic over decades.
    """
    if not numbered:
        return []
    middle = median_low(one.at for _, one in numbered)
    kept = []
    for number, one in numbered:
        if abs(one.at - middle) <= MOST_APART:
            kept.append(one)
            continue
        far = f"more than a year from the median of all lines, {middle:.15g} s"
        left_out.add(number, f"timestamp comes to {one.at:.15g} s, {far}")
    return kept


def _form(path: Path, most: int) -> str:
    """Return the format that most of the first lines have; of as many of each, the first line's.

    Raises ValueError if no line has the fields of one.
    """
    problem = ""
    found: Counter[str] = Counter()
    for number, raw in islice(_lines(path, most), BEGINNING):
        try:
            known = msgspec.json.decode(raw)
        except UNREADABLE as error:
            problem = problem or f"line {number}: {NO_OBJECT}: {error}. {WANTED}"
            continue
        if isinstance(known, dict) and "requests" in known:
            found[RECORDED] += 1
        elif isinstance(known, dict) and "timestamp" in known:
            found[MOONCAKE if "input_length" in known else LOG] += 1
        else:
            problem = problem or f"line {number}: {_lack(known)}. {WANTED}"
    if not found:
        raise ValueError(problem or "is empty")
    [(form, _)] = found.most_common(1)
    return form


def _lack(line: object) -> str:
    """Return what a line without a timestamp lacks, with the names of its first fields."""
    if not isinstance(line, dict):
        return NO_OBJECT
    named = ", ".join(map(shown, islice(line, 8)))
    return f"has no timestamp, but {named}" if named else "has no timestamp"


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
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            if line.strip():
                found += 1
                yield number, line
