"""Compares the requests of a gateway's access log: a shadow pick for each, which ends at once."""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from warmpath.process.command_line import in_words
from warmpath.router.endpoint_picker.events import WantPick
from warmpath.router.endpoint_picker.pick import EndpointPicks
from warmpath.router.pick.eligible import NoPodError
from warmpath.router.pick.picker import Picker
from warmpath.router.pods.table import endpoint
from warmpath.router.shadow.gateway_line import Passed, read_sent
from warmpath.router.shadow.growing_file import GrowingFile, Line

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
        """Take lines until cancelled."""
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
        """Return the state for the live page."""
        return {
            "file": str(self._path),
            "lines": dict(self.counts),
            "problem": self._place + self._problem,
        }
