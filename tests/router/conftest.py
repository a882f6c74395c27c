"""What tests of several rooms of the router stand on."""

from collections.abc import Iterator

import pytest

from tests.fake_engine import FakeEngine


@pytest.fixture(params=["nghttp2", "grpcio"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    with FakeEngine() as engine:
        yield engine
