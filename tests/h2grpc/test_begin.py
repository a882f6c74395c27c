"""Calls that come at once begin a few in each turn of the loop, and no address waits for another's."""

import asyncio

from warmpath.h2grpc.begin import MOST_AT_ONCE, Beginnings


async def test_thousands_of_calls_of_one_address_keep_no_other_waiting() -> None:
    loop, beginnings, begun = asyncio.get_running_loop(), Beginnings(), list[str]()
    for _ in range(1000):
        beginnings.add(loop, "many", lambda: begun.append("many"))
    assert len(begun) == MOST_AT_ONCE
    beginnings.add(loop, "one", lambda: begun.append("one"))
    await asyncio.sleep(0)
    assert "one" in begun
    assert len(begun) == 2 * MOST_AT_ONCE
    while len(begun) < 1001:
        before = len(begun)
        await asyncio.sleep(0)
        assert before < len(begun) <= before + MOST_AT_ONCE


async def test_a_call_alone_begins_at_once() -> None:
    loop, beginnings, begun = asyncio.get_running_loop(), Beginnings(), list[int]()
    for number in range(3):
        beginnings.add(loop, "one", lambda number=number: begun.append(number))
        assert begun[-1] == number
        await asyncio.sleep(0)
        await asyncio.sleep(0)
