"""A rank: no token lost or doubled, whatever is done to its engine meanwhile."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.lab.simworker.state_machines import long_test
from warmpath.lab.simworker.build_engine import ENGINES, EngineSettings
from warmpath.lab.simworker.engine import Engine, EngineFailedError, Generation, RequestRefusedError
from warmpath.lab.simworker.server.flight import Flight
from warmpath.lab.simworker.server.rank import Rank
from warmpath.lab.simworker.server.shell import Pace
from warmpath.lab.simworker.server.task_set import TaskSet
from warmpath.lab.simworker.v1.assemble import KVGroup

SETTINGS = EngineSettings(
    engine="vllm-v1", blocks=12, block_size=2, kv_groups=(KVGroup(2),), use_eagle=False, retention=None, max_num_seqs=3, max_num_batched_tokens=8,
    max_model_len=20, vocab_size=100, hash_algo="sha256_cbor", hash_seed="0",
    scheduling_policy="fcfs", preset="study-70b-tp4",
    cpu_blocks=0, describes_offloads=False, bytes_per_block=1, enable_prefix_caching=True, enable_chunked_prefill=True,
)  # fmt: skip
PROMPTS = [(1, 2, 3, 4, 5), (1, 2, 3, 4, 6, 7), (8,), (9, 9, 9, 9, 9, 9, 9, 9)]
LENGTHS = [1, 2, 5]


def new_engine() -> Engine[Any]:
    return ENGINES["vllm-v1"].build(SETTINGS, lambda: 0.0)


def new_rank(
    tasks: TaskSet,
    announce: Callable[[Sequence[Any]], None] = lambda _: None,
    pace: Pace | None = None,
) -> Rank[Any]:
    return Rank(
        0, new_engine, announce, lambda: None, Heard, clock=asyncio.get_running_loop().time,
        pace=pace or Pace(asyncio.sleep, speed=1e6), tasks=tasks,
    )  # fmt: skip


@cache
def expected(prompt: tuple[int, ...], length: int) -> list[int]:
    """Return what an engine of its own generates."""
    engine = new_engine()
    tokens: list[int] = []
    ask = Generation("", list(prompt), length)
    engine.submit(Flight("x", ask, lambda *_: None).begin(lambda new, _: tokens.extend(new)))
    while engine.busy:
        engine.begin_step()
        engine.end_step()
    return tokens


class Heard:
    """Observes a rank and records the output of its flights."""

    def __init__(self) -> None:
        self.tokens_seen = 0
        self.first_tokens = 0
        self.ended: list[str] = []

    def first_token(self, seconds: float, prompt_tokens: int) -> None:
        assert seconds >= 0
        assert prompt_tokens > 0
        self.first_tokens += 1

    def tokens(self, count: int) -> None:
        self.tokens_seen += count

    def finished(self, seconds: float, reason: str) -> None:
        assert seconds >= 0
        self.ended.append(reason)


class Told:
    """The output that one flight's sink received."""

    def __init__(self, prompt: tuple[int, ...], length: int) -> None:
        self.expected = expected(prompt, length)
        self.tokens: list[int] = []
        self.reason: str | None = None
        self.lost = False

    def take(self, tokens: list[int], reason: str | None) -> None:
        assert self.reason is None, "told more after its end"
        assert not self.lost, "told something after it was dropped"
        self.tokens += tokens
        self.reason = reason


class Lives(RuleBasedStateMachine):
    """Requests, aborts, resets, pauses, hangs and restarts in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.time = itertools.count()
        self.told: dict[str, Told] = {}
        self.flights: dict[str, Flight] = {}
        self.heard = Heard()
        self.batches: list[Sequence[Any]] = []
        self.lives = 0
        self.run(self.open())

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        self.loop.run_until_complete(work)

    async def open(self) -> None:
        self.tasks = TaskSet()
        self.pace = Pace(lambda _: asyncio.sleep(0), speed=1e6)
        self.rank: Rank[Any] = Rank(
            0, new_engine, self.batches.append, self.begin_stream, lambda: self.heard,
            clock=lambda: float(next(self.time)), pace=self.pace, tasks=self.tasks,
        )  # fmt: skip

    def begin_stream(self) -> None:
        self.lives += 1

    async def turns(self, count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(0)

    @rule(prompt=st.sampled_from(PROMPTS), length=st.sampled_from(LENGTHS))
    def submit(self, prompt: tuple[int, ...], length: int) -> None:
        async def submit() -> None:
            name = f"r{len(self.told)}"
            told = self.told[name] = Told(prompt, length)
            flight = self.flights[name] = Flight(
                name, Generation("", list(prompt), length), told.take
            )
            self.rank.submit(flight)

        self.run(submit())

    @rule()
    def refuse(self) -> None:
        async def refuse() -> None:
            if not self.rank.paused:
                with pytest.raises(RequestRefusedError):
                    self.rank.submit(Flight("big", Generation("", [1] * 19, 9), lambda *_: None))

        self.run(refuse())

    @rule(count=st.integers(1, 12))
    def step(self, count: int) -> None:
        self.run(self.turns(count))

    @precondition(lambda self: self.flights)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.flights)))
        self.rank.abort(name)
        self.told[name].lost |= self.told[name].reason is None

    @rule(running=st.booleans())
    def reset(self, running: bool) -> None:
        async def reset() -> None:
            done = self.rank.reset_prefix_cache(reset_running_requests=running)
            assert done or not running

        self.run(reset())

    @rule(mode=st.sampled_from(["abort", "keep"]), clear=st.booleans())
    def pause(self, mode: str, clear: bool) -> None:
        async def pause() -> None:
            self.rank.pause(mode)
            if clear and not self.pace.hung:
                await self.rank.forget()

        self.run(pause())

    @rule()
    def resume(self) -> None:
        async def resume() -> None:
            self.rank.resume()

        self.run(resume())

    @rule(hung=st.booleans())
    def hang(self, hung: bool) -> None:
        self.pace.hang(hung)

    @rule()
    def restart(self) -> None:
        async def restart() -> None:
            self.rank.restart()

        self.run(restart())
        for told in self.told.values():
            told.lost |= told.reason is None

    @invariant()
    def it_holds_together(self) -> None:
        self.rank.check()
        engine: Any = self.rank.engine
        engine.manager.check()

    @invariant()
    def what_is_told_is_what_one_engine_alone_would_say(self) -> None:
        for told in self.told.values():
            assert told.tokens == told.expected[: len(told.tokens)]
            assert told.reason != "length" or told.tokens == told.expected
            assert told.reason != "error"

    @invariant()
    def all_is_counted(self) -> None:
        assert self.heard.tokens_seen == sum(len(told.tokens) for told in self.told.values())
        assert len(self.heard.ended) == sum(told.reason is not None for told in self.told.values())
        open_ones = [told for told in self.told.values() if told.reason is None and not told.lost]
        assert self.rank.in_flight == len(open_ones)

    def teardown(self) -> None:
        self.pace.hang(False)
        self.resume()
        for _ in range(200):
            self.run(self.turns(20))
            if not self.rank.in_flight:
                break
        assert not self.rank.in_flight, "some never end"
        assert not self.tasks.failed.done()
        self.run(self.rank.drained())
        self.run(self.tasks.close())
        self.loop.close()


TestLives = long_test(Lives)


async def test_a_request_that_comes_right_after_a_restart_is_served() -> None:
    tasks = TaskSet()
    rank = new_rank(tasks)
    old, new = Told(PROMPTS[0], 5), Told(PROMPTS[1], 5)
    rank.submit(Flight("old", Generation("", list(PROMPTS[0]), 5), old.take))
    await asyncio.sleep(0)
    rank.restart()
    rank.submit(Flight("new", Generation("", list(PROMPTS[1]), 5), new.take))
    await rank.drained()
    assert (old.reason, new.reason) == (None, "length")
    await tasks.close()


async def test_what_waits_for_sleep_is_let_go_by_a_restart() -> None:
    tasks = TaskSet()
    pace = Pace(asyncio.sleep, speed=1e6)
    rank = new_rank(tasks, pace=pace)
    pace.hang(True)
    rank.submit(Flight("old", Generation("", list(PROMPTS[0]), 5), lambda *_: None))
    while not rank.load().running:
        await asyncio.sleep(0)
    rank.pause("abort")
    forgetting = asyncio.create_task(rank.forget())
    await asyncio.sleep(0)
    assert not forgetting.done()
    rank.restart()
    await forgetting
    await tasks.close()


async def test_a_step_that_fails_is_noticed() -> None:
    def announce(_: Sequence[Any]) -> None:
        raise OSError("no way to tell")

    tasks = TaskSet()
    rank = new_rank(tasks, announce=announce)
    rank.submit(Flight("one", Generation("", list(PROMPTS[0]), 5), lambda *_: None))
    with pytest.raises(EngineFailedError, match="rank 0 failed: no way to tell"):
        await tasks.failed
    await tasks.close()
