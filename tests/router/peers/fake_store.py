"""A store in memory, with its own clock, for the Redis commands by which routers share bookings."""

from collections.abc import Sequence

from warmpath.indexer.shared.redis.command import Argument, Call, Command, Reply, UnreachableError

AWAY = UnreachableError("nobody answers")


class FakeStore:
    """One server. `now` is its clock, seconds."""

    def __init__(self) -> None:
        self.now = 5000.0
        self.is_away = False
        """Whether commands are not carried out."""
        self.loses_replies = False
        """Whether commands are carried out, but their replies are lost."""
        self._values: dict[str, object] = {}
        self._expires: dict[str, float] = {}
        self._entries = 0

    def run(self, asked: Sequence[Command | Call]) -> list[Reply]:
        """Carry out commands; return the reply to each."""
        if self.is_away:
            return [AWAY] * len(asked)
        replies = [self._one(one) for one in asked]
        return [AWAY] * len(asked) if self.loses_replies else replies

    def keys(self) -> list[str]:
        """Return the keys that there are."""
        return [key for key in [*self._values] if self._get(key) is not None]

    def clear(self) -> None:
        """Lose everything, as a server without persistence does when it is started again."""
        self._values.clear()
        self._expires.clear()

    def _one(self, one: Command | Call) -> Reply:
        if isinstance(one, Call):
            [key] = one.keys
            return {"enrol": self._enrol, "hand_on": self._hand_on}[one.script.name](
                key, *one.arguments
            )
        name, key, *rest = one.words
        return getattr(self, f"_{str(name).lower()}")(str(key), *rest)

    def _get(self, key: str) -> object:
        if self._expires.get(key, self.now + 1) <= self.now:
            self._values.pop(key, None)
            del self._expires[key]
        return self._values.get(key)

    def _pexpire(self, key: str, milliseconds: Argument) -> None:
        self._expires[key] = self.now + int(milliseconds) / 1000

    def _set(self, key: str, value: Argument, px: Argument, milliseconds: Argument) -> bytes:
        assert px == "PX"
        self._values[key] = value
        self._pexpire(key, milliseconds)
        return b"OK"

    def _del(self, key: str) -> int:
        self._expires.pop(key, None)
        return int(self._values.pop(key, None) is not None)

    def _hdel(self, key: str, field: Argument) -> int:
        fields = self._get(key)
        return 0 if fields is None else int(bool(fields.pop(str(field).encode(), 0)))  # type: ignore[attr-defined]

    def _xrange(self, key: str, *words: Argument) -> list[list[object]]:
        *bounds, most = words
        assert bounds == ["-", "+", "COUNT"]
        entries = self._get(key) or {}
        return [
            [name, [b"report", report]]
            for name, report in list(entries.items())[: int(most)]  # type: ignore[attr-defined]
        ]

    def _xdel(self, key: str, *names: Argument) -> int:
        entries = self._get(key) or {}
        return sum(entries.pop(name, None) is not None for name in names)  # type: ignore[attr-defined]

    def _enrol(self, key: str, router: Argument, there: Argument, listed: Argument) -> list[bytes]:
        fields: dict[bytes, float] = self._get(key) or {}  # type: ignore[assignment]
        fields[str(router).encode()] = self.now
        for name, at in list(fields.items()):
            if abs(self.now - at) > int(listed) / 1000:
                del fields[name]
        self._values[key] = fields
        self._pexpire(key, 2 * int(listed))
        return [name for name, at in fields.items() if abs(self.now - at) <= int(there) / 1000]

    def _hand_on(self, key: str, most: Argument, ttl: Argument, *reports: Argument) -> int:
        entries: dict[bytes, Argument] = self._get(key) or {}  # type: ignore[assignment]
        added = reports[: max(0, int(most) - len(entries))]
        for report in added:
            self._entries += 1
            entries[b"%d-0" % self._entries] = report
        self._values[key] = entries
        self._pexpire(key, ttl)
        return len(added)
