"""Reserves ports for servers that need a given port: Redis, a router's several processes, real engines.

Every other server binds port 0 and prints the port that it got. A port that was found free and released
could be taken before its server binds it. So the caller holds it, with a socket that is bound and never
listens, until the server has ended. Linux lets a server listen beside such a socket if both set
SO_REUSEADDR (servers do), and never assigns the port to others. Until the server listens, connections
are refused, so a held port is also an address at which certainly no server listens.
"""

import contextlib
import socket
from contextlib import ExitStack
from typing import Self

HOST = "127.0.0.1"


class HeldPorts:
    """A context manager that holds the ports it has given out until it is closed."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def take(self, *beyond: int) -> int:
        """Return a held port; the ports at these offsets beyond it are held too."""
        while True:
            with ExitStack() as held, contextlib.suppress(OSError, OverflowError):
                first = _hold(held, 0)
                for distance in beyond:
                    _hold(held, first + distance)
                self._stack.enter_context(held.pop_all())
                return first

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _hold(held: ExitStack, port: int) -> int:
    holder = held.enter_context(socket.socket())
    holder.bind((HOST, port))
    # After the bind, which would otherwise have succeeded beside another process's socket.
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return int(holder.getsockname()[1])
