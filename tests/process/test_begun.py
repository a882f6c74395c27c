"""Coroutines that begin in their caller's step (`process.loop.Begun`)."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpath.process.loop import Begun


async def work(script: list[str], log: list[str]) -> int:
    """Do what a script says, and write down how each part ended."""
    for part in script:
        try:
            if part == "turn":
                await asyncio.sleep(0)
            elif part == "wait":
                await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0)
            elif part == "forever":
                await asyncio.get_running_loop().create_future()
            elif part == "fail":
                int(part)
        except BaseException as error:
            log.append(f"{part}: {type(error).__name__}")
            raise
        log.append(part)
    return len(script)


async def begun_in_a_callback(made: Coroutine[Any, Any, int]) -> Begun[int]:
    """Begin a coroutine where no task runs."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[Begun[int]] = loop.create_future()

    def begin() -> None:
        try:
            found.set_result(Begun(made))
        except ValueError as error:
            found.set_exception(error)

    loop.call_soon(begin)
    return await found


@given(st.lists(st.sampled_from(["step", "turn", "wait", "fail"]), max_size=6))
def test_it_ends_as_a_task_would(script: list[str]) -> None:
    async def ends(log: list[str], *, is_begun: bool) -> object:
        try:
            if not is_begun:
                return await asyncio.get_running_loop().create_task(work(script, log))
            begun = await begun_in_a_callback(work(script, log))
            return begun.result if begun.is_over else await asyncio.create_task(begun)
        except ValueError as error:
            return str(error)

    logs: tuple[list[str], list[str]] = ([], [])
    ended = [asyncio.run(ends(log, is_begun=log is logs[0])) for log in logs]
    assert ended[0] == ended[1]
    assert logs[0] == logs[1]


@pytest.mark.parametrize("wait", ["turn", "forever"])
@pytest.mark.parametrize("turns", [0, 1, 2])
@pytest.mark.parametrize("is_limited", [False, True])
async def test_a_cancelled_task_ends_the_wait_even_before_its_first_step(
    wait: str, turns: int, *, is_limited: bool
) -> None:
    log: list[str] = []

    async def limited() -> int:
        return await Begun(work([wait, "forever"], log)).within(1000)

    begun = await begun_in_a_callback(limited() if is_limited else work([wait, "forever"], log))
    task = asyncio.create_task(begun)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log[-1].endswith(": CancelledError")


async def test_what_waits_has_a_time_limit_though_it_began_without_a_task() -> None:
    log: list[str] = []

    async def limited() -> int:
        return await Begun(work(["step", "forever"], log)).within(0)

    with pytest.raises(TimeoutError):
        await asyncio.create_task(await begun_in_a_callback(limited()))
    assert log == ["step", "forever: CancelledError"]
