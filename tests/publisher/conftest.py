"""A worker with a publisher that a test starts."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.publisher.published_pod import Pod


@pytest.fixture
async def pod(tmp_path: Path) -> AsyncIterator[Pod]:
    async with Pod(tmp_path) as pod:
        yield pod
