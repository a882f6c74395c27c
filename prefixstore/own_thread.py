"""Runs blocking work in a thread of its own that does not delay the process's exit.

An executor's threads are joined at the interpreter's exit, so a download that hangs would keep the
process from ending.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")


def in_own_thread(work: Callable[[], Result], name: str) -> Future[Result]:
    """Start `work` in a daemon thread; the future gets its result, even if nobody waits for it."""
    future: Future[Result] = Future()
    # From here on the future cannot be cancelled, so its result can always be set.
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001  the caller handles it
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
