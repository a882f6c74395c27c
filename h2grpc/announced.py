"""Calls that have sent their headers, and whose first message has not come.

Such a call costs its caller a hundred bytes, and only its caller is known. So it runs no handler, counts
against no other address, and ends after a while.
"""

from collections.abc import Callable

import grpc

from warmpath.h2grpc.begin import Beginnings
from warmpath.h2grpc.call import Call
from warmpath.h2grpc.method import Explain, Gate, Refusal

MOST_AT_ONCE = 64
"""Most calls that `end_late` ends in one turn of the event loop, in about 2 ms."""
MOST = 8192
"""Most such calls, of about 4 KB each; beyond it the oldest of the address with the most ends."""


class Announced:
    """The calls without a message, of all connections of a server, by address, oldest first.

    A call ends if its first message has not come `seconds` after its headers, or at once where the
    `gate` refuses it, since the server ends; the gate counts both.
    """

    def __init__(
        self, seconds: float, gate: Gate | None, explain: Explain, clock: Callable[[], float]
    ) -> None:
        self._seconds = seconds
        code = grpc.StatusCode.RESOURCE_EXHAUSTED
        self._late = explain(code, f"no message came within {seconds:g} s", "MESSAGE_LATE")
        text = f"{MOST} calls have sent no message, and most of them come from this address"
        self._too_many = explain(code, text, "OVERLOADED")
        self.gate = gate
        self._clock = clock
        self._of: dict[str, dict[Call, float]] = {}
        """By address, the time at which the headers of each call came."""
        self._all = 0
        self.beginnings = Beginnings()

    def __len__(self) -> int:
        return self._all

    def add(self, call: Call) -> None:
        """Add a call. It ends if the gate refuses it; beyond MOST calls another one may end for it."""
        call.on_came = self._came
        self._of.setdefault(call.address, {})[call] = self._clock()
        self._all += 1
        if (refusal := self._refusal(call)) is not None:
            self._end(call, refusal)
        elif self._all > MOST:
            most = max(self._of.values(), key=len)
            self._end(next(iter(most)), self._too_many)

    def _came(self, call: Call) -> None:
        """Forget a call whose message has come, or that has ended without one."""
        calls = self._of[call.address]
        del calls[call]
        if not calls:
            del self._of[call.address]
        self._all -= 1

    def end_late(self, now: float) -> bool:
        """End at most MOST_AT_ONCE calls whose first message is late; return whether more are late."""
        before = now - self._seconds
        late: list[Call] = []
        for calls in self._of.values():
            for call, since in calls.items():
                if since > before or len(late) > MOST_AT_ONCE:
                    break
                late.append(call)
        for call in late[:MOST_AT_ONCE]:
            # The end of one may show that its connection is lost, and so end others.
            if call.on_came is not None:
                self._end(call, self._late)
        return len(late) > MOST_AT_ONCE

    def end_refused(self) -> None:
        """End the calls that the gate refuses since the server ends."""
        for call in [call for calls in self._of.values() for call in calls]:
            if call.on_came is not None and (refusal := self._refusal(call)) is not None:
                self._end(call, refusal)

    def _refusal(self, call: Call) -> Refusal | None:
        return None if self.gate is None else self.gate.ending(call.method)

    def _end(self, call: Call, refusal: Refusal) -> None:
        if self.gate is not None:
            since = self._of[call.address][call]
            self.gate.ended(call.method, refusal, self._clock() - since)
        call.give_up(refusal)
