"""A store in memory, and two routers that share bookings through it."""

import pytest

from tests.router.peers.fake_store import FakeStore
from tests.router.peers.sharing_routers import Router, meet


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
def two(store: FakeStore) -> tuple[Router, Router]:
    pair = Router(store), Router(store, clock_ahead=-4000.0)
    meet(pair)
    return pair
