"""A process that is killed while it writes."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def writing(write: Callable[[], None]) -> Iterator[None]:
    """Let a process `write`, without end, until the context is left: it is killed then."""
    process = os.fork()
    if not process:
        try:
            write()
        finally:
            os._exit(1)  # the test goes on in the other process alone
    try:
        yield
    finally:
        os.kill(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
    assert os.WIFSIGNALED(status), "it ended by itself"
