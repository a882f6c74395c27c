"""The places of watchers, which clients share fairly."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class WatcherPlace:
    """One watcher's place; `end` asks the watcher to leave, with a reason."""

    client: str
    end: Callable[[str], None] = field(repr=False)
    waits: bool = False
    """Whether a message waits for the watcher to take it."""


class Places:
    """At most `most` watchers.

    One client may have all places. Where none is left, a client that has at least two fewer than
    another takes one of the other's, so no client keeps others out. `client_of` names a client.
    """

    def __init__(self, most: int) -> None:
        self.yielded = 0
        """Watchers that were ended so that another client gets their place."""
        self._most = most
        self._places: list[WatcherPlace] = []

    def __len__(self) -> int:
        return len(self._places)

    def take(self, client: str, end: Callable[[str], None]) -> WatcherPlace | None:
        """Return a place for a client; None where no place is left for it."""
        if len(self._places) >= self._most:
            held = Counter(place.client for place in self._places)
            most = max(held.values())
            if most <= held[client] + 1:
                return None
            spare = [place for place in self._places if held[place.client] == most]
            # One that does not read, or else the newest.
            place = next((one for one in spare if one.waits), spare[-1])
            self.yielded += 1
            self.leave(place)
            place.end("the place goes to a client that has fewer (--max-watchers)")
        taken = WatcherPlace(client, end)
        self._places.append(taken)
        return taken

    def leave(self, place: WatcherPlace) -> None:
        """Give a place back; nothing happens to one that was given back already."""
        if place in self._places:
            self._places.remove(place)


def client_of(peer: str, subject: str) -> str:
    """Return the caller's name: the subject of its certificate, or else its host."""
    return subject or peer.rpartition(":")[0] or peer
