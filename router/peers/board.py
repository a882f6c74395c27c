"""What the processes of one router tell each other of their bookings, kept by their parent. No sockets.

It answers the commands of `router.peers.exchange` as Redis would, for routers on one machine.
"""

from collections.abc import Callable, Sequence
from typing import Any

from warmpath.indexer.shared.redis.command import Argument, Call, Command

Words = Sequence[Argument]
"""A command's words, or a script's name, its key and its arguments."""


def words_of(one: Command | Call) -> Words:
    """Return a command in the form that `Board.run` takes."""
    return one.words if isinstance(one, Command) else (one.script.name, *one.keys, *one.arguments)


class Board:
    """The routers, their bookings and their reports, by the keys of Redis. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kept: dict[str, Any] = {}
        """Written bookings (bytes); as dicts the times of routers, and waiting reports by their ids."""
        self._expires: dict[str, float] = {}
        self._numbers = 0
        self._do: dict[str, Callable[..., Any]] = {
            "enrol": self._enrol,
            "SET": self._set,
            "GET": self._kept.get,
            "hand_on": self._hand_on,
            "XRANGE": self._waiting,
            "XDEL": self._delete,
            "DEL": self._let_go,
            "HDEL": self._delete,
        }

    def run(self, asked: Sequence[Words]) -> list[Any]:
        """Carry out commands; return the reply to each. Raises KeyError for one that is not known."""
        self.expire()
        return [self._do[str(name)](key, *rest) for name, key, *rest in asked]

    def expire(self) -> list[str]:
        """Let go what is too old; return the keys that are left."""
        now = self._clock()
        for key in [key for key, at in self._expires.items() if at <= now]:
            self._let_go(key)
        return list(self._kept)

    def _keep(self, key: str, value: Any, milliseconds: int) -> None:
        self._kept[key] = value
        self._expires[key] = self._clock() + milliseconds / 1000

    def _let_go(self, key: str) -> int:
        self._expires.pop(key, None)
        return int(self._kept.pop(key, None) is not None)

    def _enrol(self, key: str, router: str, there: int, listed: int) -> list[bytes]:
        now = self._clock()
        seen = {**self._kept.get(key, {}), router.encode(): now}
        self._keep(
            key, {one: at for one, at in seen.items() if now - at <= listed / 1000}, 2 * listed
        )
        return [one for one, at in seen.items() if now - at <= there / 1000]

    def _set(self, key: str, value: bytes, _: str, milliseconds: str) -> bytes:
        self._keep(key, value, int(milliseconds))
        return b"OK"

    def _hand_on(self, key: str, most: int, milliseconds: int, *reports: bytes) -> int:
        waiting = self._kept.get(key, {})
        taken = reports[: max(0, most - len(waiting))]
        for report in taken:
            self._numbers += 1
            waiting[b"%d" % self._numbers] = report
        self._keep(key, waiting, milliseconds)
        return len(taken)

    def _waiting(self, key: str, *words: str) -> list[tuple[bytes, list[bytes]]]:
        waiting = list(self._kept.get(key, {}).items())[: int(words[-1])]
        return [(name, [b"report", report]) for name, report in waiting]

    def _delete(self, key: str, *names: bytes | str) -> int:
        kept = self._kept.get(key, {})
        plain = (name.encode() if isinstance(name, str) else name for name in names)
        return sum(kept.pop(name, None) is not None for name in plain)
