"""One connection that many callers share, each with its own replies; a node that is given up meanwhile."""

import asyncio
from collections import deque
from collections.abc import Sequence
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpath.indexer.shared.redis.command import Argument, Command, Reply, UnreachableError
from warmpath.indexer.shared.redis.node import Link, Node, NotSentError, Wire


class Echo:
    """A wire whose other side answers each command with the command's only word, when the test says so."""

    def __init__(self) -> None:
        self.unanswered: deque[Reply] = deque()
        self.answers: asyncio.Queue[Reply] = asyncio.Queue()
        self.is_open = True

    async def send(self, commands: Sequence[tuple[Argument, ...]]) -> None:
        if not self.is_open:
            raise UnreachableError("closed")
        self.unanswered.extend(word for (word,) in commands)
        await asyncio.sleep(0)

    async def receive(self) -> Reply:
        reply = await self.answers.get()
        if reply is None or not self.is_open:
            raise UnreachableError("cut")
        return reply

    async def is_dirty(self) -> bool:
        return not self.answers.empty()

    async def close(self, *, wait: bool = False) -> None:  # noqa: ARG002 - the Protocol's
        self.is_open = False
        self.answers.put_nowait(None)

    def answer(self, number: int) -> None:
        for _ in range(min(number, len(self.unanswered))):
            self.answers.put_nowait(self.unanswered.popleft())


async def settle() -> None:
    for _ in range(12):
        await asyncio.sleep(0)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(1, 4)),
        st.tuples(st.just("answer"), st.integers(1, 6)),
        st.tuples(st.just("give up"), st.integers(0, 9)),
        st.tuples(st.just("go on"), st.just(0)),
    ),
    max_size=40,
)


@given(STEPS, st.booleans())
def test_everyone_who_waits_gets_its_own_replies_whoever_gives_up(
    steps: list[tuple[str, int]], is_cut: bool
) -> None:
    async def run() -> None:
        wire = Echo()
        losses = []
        link = Link(wire, lambda: losses.append(1))
        names = count()
        asks: list[tuple[asyncio.Task[None], list[Reply], list[Reply]]] = []
        for step, number in steps:
            match step:
                case "ask":
                    words: list[Reply] = [next(names) for _ in range(number)]
                    got: list[Reply] = []
                    work = link.ask([(word,) for word in words], got)
                    asks.append((asyncio.create_task(work), words, got))
                case "answer":
                    wire.answer(number)
                case "give up" if asks:
                    asks[number % len(asks)][0].cancel()
            if number % 2:
                await settle()
        await settle()
        if is_cut:
            await link.close()
        wire.answer(1000)
        await asyncio.wait_for(
            asyncio.gather(*(task for task, _, _ in asks), return_exceptions=True), 10
        )
        for task, words, got in asks:
            assert got == words[: len(got)]
            if not task.cancelled() and not task.exception():
                assert got == words
            elif not task.cancelled():
                assert is_cut
                assert isinstance(task.exception(), UnreachableError)
        assert len(losses) == is_cut
        if not is_cut:
            last: list[Reply] = []
            last_ask = asyncio.create_task(link.ask([("last",)], last))
            await settle()
            wire.answer(1000)
            await asyncio.wait_for(last_ask, 10)
            assert last == ["last"]

    asyncio.run(run())


async def test_what_nobody_asked_for_ends_the_connection() -> None:
    wire = Echo()
    link = Link(wire, lambda: None)
    assert await link.is_usable()
    wire.answers.put_nowait("odd")
    assert not await link.is_usable()
    assert not wire.is_open


async def test_a_connection_that_was_closed_in_a_write_is_not_usable() -> None:
    wire = Echo()
    lost = []
    link = Link(wire, lambda: lost.append(1))
    ask = asyncio.create_task(link.ask([("a",)], []))
    await asyncio.sleep(0)
    wire.is_open = False
    ask.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ask
    assert lost == [1]
    assert not await link.is_usable()
    assert lost == [1]


async def test_who_waits_for_a_connection_that_is_given_up_is_told_and_not_cancelled() -> None:
    begun = asyncio.Event()

    async def dial() -> Wire:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    node = Node("a:1", dial, lambda: None)
    askers = [asyncio.create_task(node.ask([Command(("PING",))], [])) for _ in range(2)]
    await begun.wait()
    await node.close()
    for asker in askers:
        with pytest.raises(NotSentError, match="a:1: the client is closed"):
            await asker


async def test_who_stops_waiting_for_a_connection_leaves_it_to_others() -> None:
    begun, refused = asyncio.Event(), asyncio.Event()

    async def dial() -> Wire:
        begun.set()
        await refused.wait()
        raise NotSentError("it says no")

    node = Node("a:1", dial, lambda: None)
    first, second = (asyncio.create_task(node.ask([Command(("PING",))], [])) for _ in range(2))
    await begun.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    refused.set()
    with pytest.raises(NotSentError, match="a:1: it says no"):
        await second
