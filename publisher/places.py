"""The places of watchers: clients share them fairly, and who does not read leaves."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class Place:
    """One watcher's place; `end` asks it to leave, with a reason."""

    client: str
    end: Callable[[str], None] = field(repr=False)
    waits_since: float | None = None
    """When the message began to wait that the watcher takes next; None: nothing waits for it."""
    is_ending: bool = False


class Places:
    """At most `most` watchers, `slow_seconds` for each of them to take a message. `clock` tells seconds.

    All of them may be one client's; where none is left, a client that has fewer than another gets one of
    that one's, so nobody keeps others out. `client_of` names a client.
    """

    def __init__(self, most: int, *, slow_seconds: float, clock: Callable[[], float]) -> None:
        self.slow = 0
        """Watchers that were ended because they did not read."""
        self.yielded = 0
        """Watchers that were ended for other clients' sake."""
        self._most = most
        self._slow_seconds = slow_seconds
        self._clock = clock
        self._places: list[Place] = []

    def __len__(self) -> int:
        return len(self._places)

    def take(self, client: str, end: Callable[[str], None]) -> Place | None:
        """Return a place for a client; None where none is left for it."""
        if len(self._places) >= self._most:
            place = self._spare(client)
            if place is None:
                return None
            self.yielded += 1
            self._end(place, "the place goes to a client that has fewer (--max-watchers)")
            self.leave(place)
        taken = Place(client, end)
        self._places.append(taken)
        return taken

    def leave(self, place: Place) -> None:
        """Give a place back; one that was given back is nobody's."""
        if place in self._places:
            self._places.remove(place)

    def sending(self, place: Place) -> None:
        """Take note that a message waits for a watcher."""
        place.waits_since = self._clock()

    @staticmethod
    def sent(place: Place) -> None:
        """Take note that the watcher took it."""
        place.waits_since = None

    def end_slow(self) -> Iterator[tuple[str, float]]:
        """Ask those to leave that took nothing for too long; yield their clients and the seconds."""
        now = self._clock()
        for place in [*self._places]:
            if place.waits_since is None or place.is_ending:
                continue
            waited = now - place.waits_since
            if waited > self._slow_seconds:
                self.slow += 1
                self._end(place, f"the watcher read nothing for {waited:.0f} s")
                yield place.client, waited

    def _spare(self, client: str) -> Place | None:
        """Return the place to take from who has most: the one that has waited longest, or the newest."""
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
    def _end(place: Place, reason: str) -> None:
        place.is_ending = True
        place.end(reason)


def client_of(peer: str, subject: str) -> str:
    """Return who calls: the subject of the certificate that was shown, or else the host."""
    return subject or peer.rpartition(":")[0] or peer
