"""Compares the requests of a gateway's access log: a shadow pick for each, which ends at once.

The file may be renamed or truncated while the gateway appends lines to it.
"""

import asyncio
import logging
import os
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from warmpath.process.command_line import in_words
from warmpath.router.endpoint_picker.events import WantPick
from warmpath.router.endpoint_picker.pick import EndpointPicks
from warmpath.router.pick.eligible import NoPodError
from warmpath.router.pick.picker import Picker
from warmpath.router.pods.table import endpoint
from warmpath.router.shadow.gateway_line import Passed, read_sent

REST_SECONDS = 10.0
"""A renamed file that has not grown for so long is left: its writer has opened the new one."""
MOST_BYTES = 8 << 20
"""Bytes of each file that one call reads."""
MOST_LINE_BYTES = 64 << 20
"""The longest line; the beginning of a longer one comes as a line, and the rest of it is left out."""
SHOWN_BYTES = 1024


class Line(NamedTuple):
    """A line without its break."""

    at: int
    """The byte of its file at which it begins."""
    content: bytes


class _Opened:
    """A file that is open, and the beginning of a line whose end is not written yet."""

    def __init__(self, file: BinaryIO, now: float) -> None:
        self.file = file
        self.grown_at = now
        self._rest = bytearray()
        self._is_skipping = False

    def skip(self) -> None:
        """Leave out all lines that have begun."""
        if self.file.seek(0, os.SEEK_END):
            self.file.seek(-1, os.SEEK_END)
            self._is_skipping = self.file.read(1) != b"\n"

    def lines(self, now: float) -> list[Line]:
        """Return the lines that have ended since the last call, in order."""
        if os.fstat(self.file.fileno()).st_size < self.file.tell():
            self.file.seek(0)
            self._rest.clear()
        begun, at = len(self._rest), self.file.tell() - len(self._rest)
        read = self.file.read(MOST_BYTES)
        if not read:
            return []
        self.grown_at = now
        self._rest += read
        if (end := self._rest.rfind(b"\n", begun)) < 0:
            return self._cut(at)
        lines = []
        for content in bytes(self._rest[:end]).split(b"\n"):
            lines.append(Line(at, content))
            at += len(content) + 1
        del self._rest[: end + 1]
        if self._is_skipping:
            self._is_skipping = False
            del lines[0]
        return lines + self._cut(at)

    def _cut(self, at: int) -> list[Line]:
        """Return the beginning of a line that is too long, once, and drop what there is of it."""
        if len(self._rest) <= MOST_LINE_BYTES and not self._is_skipping:
            return []
        begun = [] if self._is_skipping else [Line(at, bytes(self._rest[:SHOWN_BYTES]))]
        self._is_skipping = True
        self._rest.clear()
        return begun

    def close(self) -> list[Line]:
        """Return the last line, if it has no break."""
        at = self.file.tell() - len(self._rest)
        self.file.close()
        return [] if self._is_skipping or not self._rest else [Line(at, bytes(self._rest))]


class GrowingFile:
    """Reads the lines that are appended to the file with one name. `clock` returns seconds.

    A renamed file is read on for a while beside the new one. Where a file is truncated, it is read again
    from its beginning. What is appended and then truncated, or renamed twice, between two calls is lost.
    """

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        """Leave out the lines that are there already."""
        self._path = path
        self._clock = clock
        self._opened: list[_Opened] = []
        """The files of the name, the newest last."""
        self._open(at_end=True)

    def _open(self, *, at_end: bool) -> None:
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return
        opened = _Opened(file, self._clock())
        if at_end:
            opened.skip()
        self._opened.append(opened)

    def read(self) -> list[Line]:
        """Return the next lines, none if there are no new ones. Raises OSError."""
        now = self._clock()
        lines = [line for opened in self._opened for line in opened.lines(now)]
        if self._is_new():
            self._open(at_end=False)
            lines += self._opened[-1].lines(now) if self._opened else []
        for opened in self._opened[:-1]:
            if now - opened.grown_at > REST_SECONDS:
                self._opened.remove(opened)
                lines += opened.close()
        return lines

    def _is_new(self) -> bool:
        """Return whether the name stands for another file than the newest that is open."""
        try:
            there = self._path.stat()
        except FileNotFoundError:
            return False
        return not self._opened or not os.path.samestat(
            there, os.fstat(self._opened[-1].file.fileno())
        )

    def close(self) -> None:
        for opened in self._opened:
            opened.close()


log = logging.getLogger(__name__)

PAUSE = 0.2
"""Seconds between two looks at a file that does not grow."""
PICK_SECONDS = 10.0
MOST_AHEAD = 1.0
"""Seconds by which a gateway's clock may be ahead: its requests would seem to find what they stored."""

COMPARED, BAD, ELSEWHERE, UNPICKED = "compared", "bad", "elsewhere", "unpicked"
"""Outcomes of a line beside `Passed`: compared; not readable; sent to no pod of the model; no pod could
be picked in time."""
OUTCOMES = (COMPARED, BAD, ELSEWHERE, UNPICKED, *Passed)


class LogFeed:
    """Takes the lines of a log. A time of the picker + `wall_offset()` is Unix time, in seconds."""

    def __init__(
        self,
        path: Path,
        picks: EndpointPicks,
        picker: Picker,
        *,
        clock: Callable[[], float],
        wall_offset: Callable[[], float],
    ) -> None:
        self._path = path
        self._file = GrowingFile(path, clock)
        self._picks = picks
        self._picker = picker
        self._clock = clock
        self._wall_offset = wall_offset
        self._waiting: deque[Line] = deque()
        """Lines that were read; they survive a fault in one of them."""
        self.counts: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
        """Lines by outcome."""
        self._problem, self._place = "", ""
        """The last problem, without any part of a prompt, and its line; empty: there was none."""

    async def run(self) -> None:
        while True:
            while self._waiting:
                await self.take(self._waiting.popleft())
            try:
                self._waiting.extend(await asyncio.to_thread(self._file.read))
            except OSError as error:
                self._complain(in_words(error))
            if not self._waiting:
                await asyncio.sleep(PAUSE)

    def close(self) -> None:
        self._file.close()

    async def take(self, line: Line) -> None:
        """Take one line, which may be empty."""
        if line.content.strip():
            outcome = await self._outcome(line)
            self.counts[outcome] += 1

    async def _outcome(self, line: Line) -> str:
        try:
            sent = read_sent(line.content)
        except ValueError as error:
            self._complain(str(error), line)
            return BAD
        if isinstance(sent, Passed):
            return sent
        headers = {"": "", ":path": sent.path}
        as_of = sent.at - self._wall_offset()
        if (ahead := as_of - self._clock()) > MOST_AHEAD:
            self._complain(f"timestamp is {ahead:.1f} s ahead of this machine's clock", line)
            return BAD
        want = WantPick(sent.body, None, headers, is_shadow=True, as_of=as_of)
        try:
            async with asyncio.timeout(PICK_SECONDS):
                made, _, _ = await self._picks.make(want, PICK_SECONDS)
        except (NoPodError, TimeoutError) as error:
            self._complain(f"upstream {sent.upstream}: {error or 'no pick was made in time'}", line)
            return UNPICKED
        field, upstream = made.choice.options.field, endpoint(sent.upstream)
        pods = zip(field.names, field.pods, strict=True)
        if there := [name for name, pod in pods if endpoint(pod.address) == upstream]:
            # A log does not tell the rank: the engine is believed to have chosen the best one.
            where = max(there, key=lambda name: made.predicted[name].held)
            self._picker.passed(made, where, sent.cached_tokens, self._clock())
            return COMPARED
        self._complain(f"upstream is {sent.upstream}, the address of no pod of the model", line)
        self._picker.ended(made.booking_id, "failed", self._clock())
        return ELSEWHERE

    def _complain(self, problem: str, line: Line | None = None) -> None:
        self._place = f"the line at byte {line.at}: " if line else ""
        if problem != self._problem:
            log.warning("--shadow-log %s: %s%s", self._path, self._place, problem)
        self._problem = problem

    def view(self) -> dict[str, Any]:
        return {
            "file": str(self._path),
            "lines": dict(self.counts),
            "problem": self._place + self._problem,
        }
