"""Steps of a call: the stretches in which it holds the loop, with a turn for others after each."""

import time
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any


class Steps:
    """Awaits a call and keeps what each of its steps took: seconds of this thread's processor time.

    That is the hold of the loop on a machine with nothing else to do.
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
            except BaseException as error:  # noqa: BLE001  the call is to have it
                step = partial(steps.throw, error)
            else:
                step = partial(steps.send, None)
