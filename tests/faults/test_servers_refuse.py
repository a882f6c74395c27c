"""A server refuses commands and keeps connections: what is called exact is true throughout, and all heals."""

import pytest

from tests.faults import refusals

pytestmark = pytest.mark.deep

HOLD = 0.0


@pytest.mark.parametrize("name", refusals.WRITES_REFUSED)
async def test_what_cannot_be_written_is_not_called_exact_for_long(name: str, prefix: str) -> None:
    await refusals.refused(prefix, HOLD, refusal=refusals.WRITES_REFUSED[name])


@pytest.mark.parametrize("name", refusals.ALL_REFUSED)
async def test_what_was_refused_is_exact_only_once_publishers_have_written_again(
    name: str, prefix: str
) -> None:
    await refusals.refused(prefix, HOLD, refusal=refusals.ALL_REFUSED[name])
