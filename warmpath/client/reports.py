"""A client's reports on their way, in the order in which they were made. No I/O.

A call costs a router several times what a report in it does. So one call is made at a time: reports wait
while it is under way, and go together in the next one. There is no timer: where no call is under way, a
report goes at once.
"""

import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field

import grpc

from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.report_event import MOST_ALSO

MOST_WAITING = 10_000
"""The most reports that wait; further ones are dropped, since none would go if a router hangs."""
MOST_TOGETHER = 1 + MOST_ALSO
"""The most reports of a call."""


@dataclass(eq=False, slots=True)
class Told:
    """A report that waits for its call, or for that to be answered."""

    request: pb.ReportRequest
    end: float
    """When it is given up, by `time.monotonic`."""
    is_precaution: bool = False
    """Whether nobody need learn that it is lost."""
    is_awaited: bool = False
    """Whether its caller waits for the answer."""
    goes_alone: bool = False
    """Whether it is the only report of its call."""
    known: "Future[bool]" = field(default_factory=Future)
    """Whether the router knows its booking, False if no router has taken it."""

    def left(self) -> float:
        return max(0.0, self.end - time.monotonic())

    def answer(self, *, known: bool) -> None:
        # A caller that is cancelled cancels it.
        with suppress(InvalidStateError):
            self.known.set_result(known)


class Reports:
    """The reports of one client; any thread may use it. No I/O."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Told] = deque()
        self._underway: Sequence[Told] = ()
        """The reports of the call that is being made."""
        self._is_sending = False
        self._is_closed = False
        self._of_thread = threading.local()

    @property
    def latest(self) -> "Future[bool] | None":
        """The answer to this thread's latest report; None if it has made none."""
        return self._of_thread.__dict__.get("known")

    def add(self, told: Told) -> bool:
        """Let a report wait; return whether the caller is to start what makes the calls.

        It is dropped if too many wait. Raises RuntimeError once the client is closed.
        """
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the client is closed")
            if len(self._waiting) >= MOST_WAITING:
                told.answer(known=False)
                return False
            is_first, self._is_sending = not self._is_sending, True
            self._waiting.append(told)
        self._of_thread.known = told.known
        return is_first

    def next(self, *, is_alone: bool = False) -> tuple[pb.ReportRequest, float]:
        """Return the next call's request and deadline; with `is_alone` it has one report."""
        most = 1 if is_alone else MOST_TOGETHER
        with self._lock:
            told = [self._waiting.popleft()]
            while self._waiting and len(told) < most:
                one = self._waiting[0]
                has_more = one.request.loads or one.request.HasField("prompt")
                if has_more or one.goes_alone or told[0].goes_alone:
                    break
                told.append(self._waiting.popleft())
            self._underway = told
        request = pb.ReportRequest()
        request.CopyFrom(told[0].request)
        for one in told[1:]:
            # The fields of both messages have the same numbers.
            request.also.add().MergeFromString(one.request.SerializeToString())
        return request, max(one.end for one in told)

    def answered(self, answer: pb.ReportResponse) -> None:
        """Take the call's answer; what a router of an earlier version has passed over goes again."""
        known = (answer.known, *answer.also_known)
        for told, is_known in zip(self._underway, known, strict=False):
            told.answer(known=is_known)
        self._send_alone(self._underway[len(known) :])

    def failed(self, code: grpc.StatusCode) -> bool:
        """Take the call for lost; return whether anybody need learn of it.

        One bad report refuses all of its call: each goes again, by itself.
        """
        if code is grpc.StatusCode.INVALID_ARGUMENT and len(self._underway) > 1:
            self._send_alone(self._underway)
            return False
        for told in self._underway:
            told.answer(known=False)
        return not all(told.is_precaution for told in self._underway)

    def goes_on(self) -> bool:
        """Return whether reports wait for another call; else the next report starts the calls."""
        with self._lock:
            self._underway, self._is_sending = (), bool(self._waiting)
            return self._is_sending

    def stop(self) -> None:
        """Take the call for lost, and let the next report start what makes the calls."""
        with self._lock:
            lost, self._underway, self._is_sending = self._underway, (), False
        for told in lost:
            told.answer(known=False)

    def _send_alone(self, again: Sequence[Told]) -> None:
        for told in again:
            told.goes_alone = True
        with self._lock:
            self._waiting.extendleft(reversed(again))

    def close(self) -> None:
        """Give up all reports, and take no more."""
        with self._lock:
            self._is_closed = True
            left = (*self._underway, *self._waiting)
        for told in left:
            told.answer(known=False)
