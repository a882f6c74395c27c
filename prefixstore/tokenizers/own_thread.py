"""Blocking work in a thread of its own, which does not keep the process from ending.

An executor's threads are joined when the interpreter ends, so a download that hangs would hang the
process with it.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")


def in_own_thread(work: Callable[[], Result], name: str) -> Future[Result]:
    """Start some work; the future is done when the work is, whatever became of who waits."""
    future: Future[Result] = Future()
    # From here on it cannot be cancelled, so its result can always be set.
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001  it is the waiting side's to judge
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
