"""What a pick tells of its candidates."""

import asyncio

from router.pick.candidate_message import AT_ONCE, candidate_message, candidate_messages
from tests.router.pick.picker_parts import Parts


async def test_others_have_their_turn_while_many_candidates_are_told() -> None:
    choice = Parts(pods=5 * AT_ONCE + 1).weigh()
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(take_turns())
    told = await candidate_messages(choice.options, 0.0)
    other.cancel()
    assert turns >= 5
    assert told == [candidate_message(one, 0.0) for one in choice.options]


async def test_a_few_candidates_are_told_at_once() -> None:
    choice = Parts(pods=AT_ONCE).weigh()
    turns = 0

    async def take_turn() -> None:
        nonlocal turns
        turns += 1

    other = asyncio.create_task(take_turn())
    told = await candidate_messages(choice.options, 0.0)
    assert (len(told), turns) == (AT_ONCE, 0)
    await other
