"""Sockets for the tests of what follows engines."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import zmq.asyncio


@pytest.fixture
async def context() -> AsyncIterator[zmq.asyncio.Context]:
    context = zmq.asyncio.Context()
    yield context
    # A test that failed leaves subscribers at work, for whose sockets `term` would wait.
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    context.destroy(linger=0)
