"""The steps of a call: times for which it holds the event loop without a turn for other tasks."""

import time
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any


class Steps:
    """Awaits a call and keeps the processor time of each step, seconds of this thread.

    On an idle machine that is the time for which the step holds the loop.
    """

    def __init__(self, call: Coroutine[Any, Any, Any]) -> None:
        self._call = call
        self.seconds: list[float] = []

    def __await__(self) -> Generator[Any, None, Any]:
        steps = self._call.__await__()
        step: Callable[[], Any] = partial(steps.send, None)
        while True:
            begun = time.thread_time()
            try:
                waited_for = step()
            except StopIteration as end:
                return end.value
            finally:
                self.seconds.append(time.thread_time() - begun)
            try:
                yield waited_for
            except BaseException as error:  # noqa: BLE001  the call gets it
                step = partial(steps.throw, error)
            else:
                step = partial(steps.send, None)
