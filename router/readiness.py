"""Whether the router is ready: one state, which /readyz, gRPC's health and metrics show. No I/O here."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

STAYING = "staying"
"""The condition that nobody has asked the process to end."""
LISTENING = "listening"
"""The condition that gRPC listens."""
ALWAYS = (STAYING, LISTENING)
"""The conditions that every configuration requires."""


@dataclass(frozen=True, slots=True)
class Condition:
    """Whether a condition holds, with the reason."""

    holds: bool
    reason: str


class Readiness:
    """The conditions of a router, which is ready while all required ones hold.

    A condition is set, or looked at whenever it matters. `required` are the names of `server.ready`;
    each of them must be set or looked at before `ready` is called.
    """

    def __init__(self, required: Iterable[str]) -> None:
        self._looks: dict[str, Callable[[], Condition]] = {}
        self.require(required)
        self.set(STAYING, holds=True, reason="the process was not asked to end")
        self.set(LISTENING, holds=False, reason="gRPC does not listen yet")

    def require(self, names: Iterable[str]) -> None:
        """Require these conditions, and those that are always required, and no others."""
        self._required = frozenset({*names, *ALWAYS})

    def set(self, name: str, *, holds: bool, reason: str) -> None:
        """Set a condition. Any thread may do so."""
        condition = Condition(holds, reason)
        self._looks[name] = lambda: condition

    def look(self, name: str, look: Callable[[], Condition]) -> None:
        """Have a condition looked at: `look` returns it."""
        self._looks[name] = look

    def end(self) -> None:
        """Be ready no more: the process was asked to end."""
        self.set(STAYING, holds=False, reason="the process was asked to end")

    def requires(self, name: str) -> bool:
        """Whether a condition is required."""
        return name in self._required

    def ready(self, *, besides: str = "") -> bool:
        """Whether every required condition holds, besides one that does not count."""
        # Conditions that are not required may be dear to look at, and clients' health checks are many.
        return all(self._looks[name]().holds for name in self._required if name != besides)

    def report(self) -> dict[str, Condition]:
        """Return every condition by name, required or not."""
        return {name: look() for name, look in list(self._looks.items())}
