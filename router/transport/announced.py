"""Calls that have sent their headers, and whose first message has not come.

Such a call costs its caller a hundred bytes, before anything is known of it but who calls. So it runs no
handler, counts against no other address, and ends after a while.
"""

from collections.abc import Callable
from dataclasses import dataclass

import grpc

from router.error_info import Reason, details
from router.transport.call import Call
from router.transport.server import Gate

MOST = 8192
"""The most of them; beyond it the oldest of the address with the most ends. Each takes about 4 KB."""


@dataclass(slots=True)
class _Announced:
    since: float
    came: Callable[[], None] | None
    """What the gate is told once the message has come, or the call has ended without."""


class Announced:
    """These calls of all connections of a server, by address; the oldest of an address first.

    A call ends if its first message has not come `seconds` after its headers; the `gate` counts that.
    """

    def __init__(self, seconds: float, gate: Gate | None, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self.gate = gate
        self._clock = clock
        self._of: dict[str, dict[Call, _Announced]] = {}
        self._all = 0

    def __len__(self) -> int:
        return self._all

    def add(self, call: Call) -> None:
        """Add a call, and tell the gate that it has passed."""
        came = self.gate.passed(call.method, call.peer()) if self.gate is not None else None
        self._of.setdefault(call.address, {})[call] = _Announced(self._clock(), came)
        self._all += 1
        if self._all > MOST:
            oldest = next(iter(max(self._of.values(), key=len)))
            text = f"{MOST} calls have sent no message, and most of them come from this address"
            self._end(oldest, text, Reason.OVERLOADED)

    def came(self, call: Call) -> None:
        """Forget a call whose message has come, or that has ended without."""
        calls = self._of[call.address]
        announced = calls.pop(call)
        if not calls:
            del self._of[call.address]
        self._all -= 1
        if announced.came is not None:
            announced.came()

    def end_late(self, now: float) -> None:
        """End the calls whose first message is late."""
        before = now - self._seconds
        late: list[Call] = []
        for calls in self._of.values():
            for call, announced in calls.items():
                if announced.since > before:
                    break
                late.append(call)
        text = f"no message came within {self._seconds:g} s (limits.message-seconds)"
        for call in late:
            # The end of one may show that its connection is lost, and so end others.
            if call.announced is not None:
                self._end(call, text, Reason.MESSAGE_LATE, limit="limits.message-seconds")

    def _end(self, call: Call, text: str, reason: "Reason.ValueType", **facts: str) -> None:
        code = grpc.StatusCode.RESOURCE_EXHAUSTED
        if self.gate is not None:
            since = self._of[call.address][call].since
            self.gate.ended(call.method, code.name, self._clock() - since, Reason.Name(reason))
        call.give_up(code, text, details(code, text, reason, **facts))
