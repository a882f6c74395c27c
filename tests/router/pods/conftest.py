"""The fixtures that tests of pods share: a simulated worker, and an engine that serves its pages."""

from collections.abc import AsyncIterator

import pytest

from tests.lab.simworker.local_worker import LocalWorker
from tests.router.pods.engine import Engine
from tests.router.shared_stand import WORKER


@pytest.fixture
async def worker() -> AsyncIterator[LocalWorker]:
    """Run a worker in the test's own event loop."""
    async with LocalWorker.of(WORKER) as one:
        yield one


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with Engine().serving() as one:
        yield one
