"""Which answers of a connection its client has not read, as far as HTTP/2 tells.

A client that gives a call up resets its stream, also where the whole answer was sent and the stream has
ended for the server. A client that has read an answer to its end resets nothing. An answered ping shows
that the client's HTTP/2 has read what was sent before the ping, since frames are read in order; so a
connection that breaks later takes no such answer with it.
"""

from collections.abc import Callable


class Receipts:
    """The latest `most` answers, by stream, that their client may turn out not to have read.

    If it does turn out, the function that came with the answer is called, once.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._fresh: dict[int, Callable[[], None]] = {}
        """Answers that were sent since the last ping."""
        self._asked: dict[int, Callable[[], None]] = {}
        """Answers that were sent before the ping that is not answered."""
        self._read: dict[int, Callable[[], None]] = {}
        """Answers that the client's HTTP/2 has read; it may still reset their streams."""

    def __len__(self) -> int:
        return len(self._fresh) + len(self._asked) + len(self._read)

    def sent(self, stream: int, if_gone: Callable[[], None]) -> None:
        """Note an answer that was sent. Beyond `most` the oldest count as read."""
        self._fresh[stream] = if_gone
        if len(self) > self._most:
            oldest = self._read or self._asked or self._fresh
            del oldest[next(iter(oldest))]

    def ask(self) -> bool:
        """Return whether to ping the client now, for the answers since the last ping.

        Call it only while no ping is on its way.
        """
        self._asked, self._fresh = self._fresh, {}
        return bool(self._asked)

    def answered(self) -> None:
        """Note that the client has answered the ping."""
        self._read |= self._asked
        self._asked = {}

    def reset(self, stream: int) -> None:
        """Note that the client has reset a stream: call `if_gone` of its answer, if that is here."""
        for answers in (self._fresh, self._asked, self._read):
            if (if_gone := answers.pop(stream, None)) is not None:
                if_gone()

    def lost(self) -> None:
        """Take note that the connection is lost: call `if_gone` of each answer that may be unread."""
        unread = [*self._asked.values(), *self._fresh.values()]
        self._asked, self._fresh, self._read = {}, {}, {}
        for if_gone in unread:
            if_gone()
