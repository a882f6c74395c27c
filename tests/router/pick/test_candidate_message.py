"""The message of a pick about its candidates."""

from itertools import chain

from tests.router.pick.picker_parts import Parts
from warmpath.router.pick.messages import AT_ONCE, candidate_message, candidate_messages


async def test_many_candidates_are_told_some_at_a_time() -> None:
    choice = Parts(pods=2 * AT_ONCE + 1).weigh()
    told = [some async for some in candidate_messages(choice.options, 0.0)]
    assert list(map(len, told)) == [AT_ONCE, AT_ONCE, 1]
    assert [*chain(*told)] == [candidate_message(one, 0.0) for one in choice.options]


async def test_no_candidates_are_told_of_none() -> None:
    assert not [some async for some in candidate_messages((), 0.0)]
