"""The stand-in for Redis, in which simulated routers share bookings (`router.peers.exchange`)."""

from collections.abc import Sequence

from warmpath.indexer.shared.redis.command import Argument, Call, Command, Reply


class BookingStore:
    """Keys with bytes, and the names of routers. Nothing expires: simulated routers do not end."""

    def __init__(self) -> None:
        self._routers: dict[bytes, None] = {}
        self._values: dict[Argument, Argument] = {}

    def run(self, asked: Sequence[Command | Call]) -> list[Reply]:
        """Return the reply to each command. Raises ValueError for an unknown one."""
        return [
            self._enrol(one) if isinstance(one, Call) else self._command(*one.words)
            for one in asked
        ]

    def _enrol(self, call: Call) -> Reply:
        if call.script.name != "enrol":
            raise ValueError(f"the script {call.script.name} is not known here")
        self._routers[str(call.arguments[0]).encode()] = None
        return [*self._routers]

    def _command(self, name: Argument, key: Argument, *words: Argument) -> Reply:
        match name:
            case "SET":
                self._values[key] = words[0]
                return b"OK"
            case "GET":
                return self._values.get(key)
            case "XRANGE":
                # Each report reaches the router that picked, so none is handed on.
                return []
            case _:
                raise ValueError(f"the command {name!r} is not known here")
