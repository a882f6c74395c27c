"""The attacks of hostile clients."""

from functools import partial

import pytest

from tests.h2grpc.http2.attacked import Attack, attacked
from tests.h2grpc.served import MISSING


@pytest.fixture
def attack(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Attack:
    """Return what serves under attack, with some limits."""
    if MISSING:
        pytest.skip(MISSING)
    return partial(attacked, caplog, monkeypatch)
