"""Up to when a process has surely taken all that its sockets had for it. Sans-I/O.

A process that was stopped, or got no processor time, finds everything that was sent to it meanwhile
in its sockets when it goes on. Until then it cannot know that it is behind.
"""

import math
from collections import deque

STEP = 0.05
"""Least seconds between two beats that count: ZeroMQ's thread gets so much time to read its sockets."""
BEATS = 3
"""Beats until a message that came before the first was surely read: ZeroMQ's thread has taken it from
the socket by the second, and the loop has taken it from that thread by the third."""


class Pulse:
    """Records when an event loop ran, to know up to when it has read all messages. Times are seconds."""

    def __init__(self) -> None:
        self._beats: deque[float] = deque(maxlen=BEATS)

    def beat(self, now: float) -> None:
        if not self._beats or now - self._beats[-1] >= STEP:
            self._beats.append(now)

    @property
    def is_known(self) -> bool:
        return len(self._beats) == BEATS

    @property
    def known_until(self) -> float:
        """The last moment of which all messages were taken; minus infinity before the first."""
        return self._beats[0] if self.is_known else -math.inf
