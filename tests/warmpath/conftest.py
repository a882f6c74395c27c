"""What tests of the library share."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest


class Clock:
    """A clock that a test sets."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def run_at_once(*works: Callable[[], object]) -> None:
    """Run each in a thread of its own; raise what one of them raises."""
    with ThreadPoolExecutor(len(works)) as threads:
        for one in [threads.submit(work) for work in works]:
            one.result()
