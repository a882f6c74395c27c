"""A worker's level of sleep, and the parts of it that have to be woken.

Source: `sleep` and `wake_up` in `vllm/v1/engine/core.py` and `vllm/v1/executor/abstract.py` of 0.32.
Level 0 only pauses scheduling; levels 1 and 2 also discard the KV cache and offload or discard the
weights, which are woken one by one or together.
"""

from collections.abc import Iterable
from typing import Literal, get_args

from warmpath.lab.simworker.engine import BrokenInvariantError

TAGS = ("weights", "kv_cache")
LEVELS = (0, 1, 2)
PauseMode = Literal["abort", "wait", "keep"]
"""The fate of requests under way when an engine pauses; `Rank.pause` in `rank.py` explains each."""
MODES: tuple[PauseMode, ...] = get_args(PauseMode)


class SleepState:
    """Awake, paused, or asleep with some memory not resident."""

    def __init__(self) -> None:
        self.level: int | None = None
        self.shown: int | None = None
        """The level that metrics show: any call that wakes something ends it (`record_sleep_state`)."""
        self._asleep: set[str] = set()

    def sleep(self, level: int) -> None:
        """Fall asleep. A worker that sleeps already stays at its level, or sleeps deeper."""
        self.level = max(level, self.level or 0)
        self.shown = level
        if level:
            self._asleep |= set(TAGS)

    def wake(self, tags: Iterable[str] | None) -> bool:
        """Wake everything, or the parts that the tags name; return whether everything is awake now.

        `scheduling` wakes level 0. If a tag names a part that is awake, no part wakes, as in vLLM.
        """
        self.shown = None
        wanted = None if tags is None else [tag for tag in tags if tag != "scheduling"]
        if wanted is None:
            self._asleep.clear()
        elif all(tag in self._asleep for tag in wanted):
            self._asleep -= set(wanted)
        if not self._asleep:
            self.level = None
        return not self._asleep

    def check(self) -> None:
        """Raise BrokenInvariantError if a part sleeps while the worker is awake."""
        if self._asleep and not self.level:
            raise BrokenInvariantError(f"{sorted(self._asleep)} asleep at level {self.level}")
