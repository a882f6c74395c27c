"""A gateway and the router that it asks, as most tests want them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.router.endpoint_picker.gateway import Gateway, asking


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with asking(tmp_path) as gateway:
        yield gateway


@pytest.fixture
async def either_gateway(tmp_path: Path, transport: str) -> AsyncIterator[Gateway]:
    async with asking(tmp_path, transport=transport) as gateway:
        yield gateway
