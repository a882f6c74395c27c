"""A pulse for tests, where no loop runs in real time."""

from collections.abc import Callable

from warmpath.indexer.watch.watched_source import Pulse


class Awake(Pulse):
    """The pulse of a process that has taken all that was sent to it, at any time of `clock`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock

    @property
    def is_known(self) -> bool:
        return True

    @property
    def known_until(self) -> float:
        return self._clock()
