"""The places of watchers: clients share them fairly, and a watcher that reads nothing loses its own."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class WatcherPlace:
    """One watcher's place; `end` asks the watcher to leave, with a reason."""

    client: str
    end: Callable[[str], None] = field(repr=False)
    waits_since: float | None = None
    """Since when the next message waits for the watcher to take it; None: no message waits."""
    is_ending: bool = False


class Places:
    """At most `most` watchers, each with `slow_seconds` to take a message. `clock` returns seconds.

    One client may have all places. Where none is left, a client that has at least two fewer than
    another takes one of the other's, so no client keeps others out. `client_of` names a client.
    """

    def __init__(self, most: int, *, slow_seconds: float, clock: Callable[[], float]) -> None:
        self.slow = 0
        """Watchers that were ended because they did not read."""
        self.yielded = 0
        """Watchers that were ended so that another client gets their place."""
        self._most = most
        self._slow_seconds = slow_seconds
        self._clock = clock
        self._places: list[WatcherPlace] = []

    def __len__(self) -> int:
        return len(self._places)

    def take(self, client: str, end: Callable[[str], None]) -> WatcherPlace | None:
        """Return a place for a client; None where no place is left for it."""
        if len(self._places) >= self._most:
            place = self._spare(client)
            if place is None:
                return None
            self.yielded += 1
            self._end(place, "the place goes to a client that has fewer (--max-watchers)")
            self.leave(place)
        taken = WatcherPlace(client, end)
        self._places.append(taken)
        return taken

    def leave(self, place: WatcherPlace) -> None:
        """Give a place back; nothing happens to one that was given back already."""
        if place in self._places:
            self._places.remove(place)

    def sending(self, place: WatcherPlace) -> None:
        """Record that a message waits for a watcher."""
        place.waits_since = self._clock()

    @staticmethod
    def sent(place: WatcherPlace) -> None:
        """Record that the watcher took the message."""
        place.waits_since = None

    def end_slow(self) -> Iterator[tuple[str, float]]:
        """Ask watchers that took nothing for too long to leave; yield their clients and the seconds."""
        now = self._clock()
        for place in [*self._places]:
            if place.waits_since is None or place.is_ending:
                continue
            waited = now - place.waits_since
            if waited > self._slow_seconds:
                self.slow += 1
                self._end(place, f"the watcher read nothing for {waited:.0f} s")
                yield place.client, waited

    def _spare(self, client: str) -> WatcherPlace | None:
        """Return a place of the client with most places: the one that waits longest, else the newest.

        Return None where no client has at least two places more than `client`.
        """
        held = Counter(place.client for place in self._places)
        most = max(held.values())
        if most <= held[client] + 1:
            return None
        waiting = float("inf")
        spare = None
        for place in self._places:
            since = float("inf") if place.waits_since is None else place.waits_since
            if held[place.client] == most and since <= waiting:
                spare, waiting = place, since
        return spare

    @staticmethod
    def _end(place: WatcherPlace, reason: str) -> None:
        place.is_ending = True
        place.end(reason)


def client_of(peer: str, subject: str) -> str:
    """Return the caller's name: the subject of its certificate, or else its host."""
    return subject or peer.rpartition(":")[0] or peer
