"""Whether a source of pods can be asked: one state for the log, readiness and findings. No I/O here."""

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

log = logging.getLogger(__name__)

STAY = "the pods stay as they were"
"""The effect of a problem that leaves the pods as they are."""
REACHED = "look whether it can be reached from here"


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
    """The state of one source, which says so itself. Any thread may read it.

    `name` names the source in messages; `model` is its pods' model, empty if they may have several. A
    source that works says something at least every `due` seconds.
    """

    def __init__(
        self, name: str, model: str, clock: Callable[[], float], due: float = math.inf
    ) -> None:
        self.name = name
        self.model = model
        self._clock = clock
        self._due = due
        self._spoke_at = clock()
        """When it said something last, or the state began."""
        self._trouble: Trouble | None = Trouble(
            self._spoke_at, "it has not answered yet", STAY, REACHED
        )
        self._said = ""

    @property
    def trouble(self) -> Trouble | None:
        """Why it cannot be asked; None if it answered the last time, and that is not too long ago."""
        if self._trouble is None and self.silence > self._due:
            problem = f"it has said nothing for more than {self._due:.0f} s"
            return Trouble(self._spoke_at, problem, STAY, REACHED)
        return self._trouble

    @property
    def silence(self) -> float:
        """The seconds since it said something about its pods; before that, since the start."""
        return self._clock() - self._spoke_at

    def failed(self, problem: str, effect: str, advice: str = "") -> None:
        """Note that it cannot be asked; log a problem once, until it has ended or changed."""
        before = self.trouble
        since = self._clock() if before is None else before.since
        self._trouble = Trouble(since, problem, effect, advice)
        if problem != self._said:
            log.warning("%s: %s; %s", self.name, problem, effect)
        self._said = problem

    def spoke(self) -> None:
        """Note that it has said something about its pods, though a trouble may go on."""
        self._spoke_at = self._clock()

    def answered(self) -> None:
        """Note that it has answered, and that nothing is wrong with it."""
        self.spoke()
        self._trouble = None
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
