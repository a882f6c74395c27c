"""Whether a source of pods can be asked: one state for the log, readiness and findings. No I/O here."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

log = logging.getLogger(__name__)

STAY = "the pods stay as they were"
"""The effect of a problem that leaves the pods as they are."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a source cannot be asked."""

    since: float
    """The time of the source's clock at which it could first not be asked, in seconds."""
    problem: str
    effect: str
    """The consequence for its pods."""
    advice: str
    """An order for whoever runs the router; may be empty."""


class SourceState:
    """The state of one source, which says so itself. Any thread may read `trouble`.

    `name` names the source in messages; `model` is its pods' model, empty if they may have several.
    """

    def __init__(self, name: str, model: str, clock: Callable[[], float]) -> None:
        self.name = name
        self.model = model
        self._clock = clock
        advice = "look whether it can be reached from here"
        self.trouble: Trouble | None = Trouble(clock(), "it has not answered yet", STAY, advice)
        """None if the source answered the last time."""
        self._said = ""

    def failed(self, problem: str, effect: str, advice: str = "") -> None:
        """Note that it cannot be asked; log a problem once, until it has ended or changed."""
        before = self.trouble
        since = self._clock() if before is None else before.since
        self.trouble = Trouble(since, problem, effect, advice)
        if problem != self._said:
            log.warning("%s: %s; %s", self.name, problem, effect)
        self._said = problem

    def answered(self) -> None:
        """Note that it has answered."""
        self.trouble = None
        if self._said:
            log.info("%s: it answers again", self.name)
        self._said = ""


def unasked(sources: Iterable[SourceState]) -> str:
    """Return which sources cannot be asked and why, to be put behind a sentence; empty if all can."""
    return "".join(
        f"; {source.name}: {trouble.problem}"
        for source in sources
        if (trouble := source.trouble) is not None
    )
