"""Ports of servers that have to be told theirs: Redis, the processes of one router, engines of others.

Every other server binds port 0 and says which port it got. A port that was found free and let go can be
another's by the time its server binds it, so here the caller holds it until the server has ended, by a
socket that is bound and never listens. Linux lets a server listen beside such a socket, where both set
SO_REUSEADDR (servers do), and gives the port to nobody who asks for any. Until the server listens,
whoever connects is refused: a held port is also where certainly nobody listens.
"""

import contextlib
import socket
from contextlib import ExitStack
from types import TracebackType
from typing import Self

HOST = "127.0.0.1"


class HeldPorts:
    """A context manager; it holds what was taken until it ends."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def take(self, *beyond: int) -> int:
        """Return a port; the ports that lie so far beyond it are held too."""
        while True:
            with ExitStack() as held, contextlib.suppress(OSError, OverflowError):
                first = _hold(held, 0)
                for distance in beyond:
                    _hold(held, first + distance)
                self._stack.enter_context(held.pop_all())
                return first

    def close(self) -> None:
        """Hold nothing any longer."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _hold(held: ExitStack, port: int) -> int:
    holder = held.enter_context(socket.socket())
    holder.bind((HOST, port))
    # Only now: with it, the bind would have succeeded beside another's socket.
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return int(holder.getsockname()[1])
