"""Redis as readers need it, in memory."""

from collections.abc import Sequence
from typing import Any

from warmpath.indexer.shared.redis.command import Call, Command, Reply, UnreachableError


class HeldRedis:
    """Hashes in memory; some cannot be reached, and in the place of some is an error."""

    def __init__(self) -> None:
        self.disruptions = 0
        self.hashes: dict[str, Any] = {}
        self.unreachable: set[str] = set()
        self.asked: list[Command] = []
        self.fails_in: int | None = None
        """After so many commands one fails."""

    async def run(self, asked: Sequence[Command | Call], *, timeout: float) -> list[Reply]:
        assert timeout >= 0
        return [self._reply(one) for one in asked]

    def _reply(self, one: Command | Call) -> Reply:
        assert isinstance(one, Command), "who reads writes nothing"
        self.asked.append(one)
        name, key, *words = one.words
        assert isinstance(key, str)
        fails = self.fails_in == 0
        if self.fails_in is not None:
            self.fails_in = None if fails else self.fails_in - 1
        if fails or key in self.unreachable:
            return UnreachableError("it is away")
        fields = self.hashes.get(key, {})
        if isinstance(fields, Exception):
            return fields
        if name == "HGETALL":
            return [word for pair in fields.items() for word in pair]
        if name == "DEL":
            return self.hashes.pop(key, None) is not None
        if name == "HSET":
            raw = [word if isinstance(word, bytes) else str(word).encode() for word in words]
            self.hashes.setdefault(key, {}).update(zip(raw[::2], raw[1::2], strict=True))
            return 0
        if name == "HGET":
            return fields.get(words[0]) if isinstance(words[0], bytes) else None
        assert name == "HMGET"
        return [fields.get(word) for word in words if isinstance(word, bytes)]

    async def close(self) -> None:
        pass
