"""Two pods, their publishers and two routers around a real Redis, all at work while a test breaks it.

Engines change all the time, publishers write their caches, and both kinds of routers score prompts. Each
answer is judged by what the engines held (`tests/faults/history.py`): no Score may fail, and a claim with
exact trust must have been true within the promised time.
One file, since each fault acts on all parts at once.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from tests.faults.history import Held
from tests.faults.pod import PROMPTS, Clock, Pod, Publisher
from tests.faults.reader import Copying, Looking, Reader, WrongError
from tests.indexer.shared.inside import check_writer
from tests.servers.redis_server import Binary, RedisServer
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.shared.layout.names import KeyNames, checkpoint
from warmpath.indexer.shared.layout.record import Record, fields_of, read_record
from warmpath.indexer.shared.redis.command import Command, Redis
from warmpath.indexer.shared.redis.connect import RedisSettings, connect
from warmpath.indexer.shared.sweep.sweeper import Sweeper
from warmpath.indexer.shared.writer.lease import Cause
from warmpath.indexer.trust import PROMISED_SECONDS, Level
from warmpath.lab.verify.structure import read_bucket
from warmpath.process.tasks import cancel, watched

LEASE = 2.0
DEFAULT_LEASE = 10.0
"""That of `warmpath publish`, for faults during which leases do not end."""
BEHIND = PROMISED_SECONDS + 2.0
"""Seconds for which publishers stay behind: longer than an exact answer may be old."""
PATIENCE = 90.0
"""Longest wait for any condition, in seconds."""
STEP_PAUSE = 0.04
"""Seconds between two steps of an engine."""
ASK_PAUSE = 0.005

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The effects of a fault, after everything has healed."""

    times: dict[str, "Times"]
    """The times by reader."""
    reasons: dict[str, Counter[str]]
    """The reasons of answers that were not exact, by reader."""
    rebuilds: Counter[Cause]
    """The causes for which publishers have rewritten their pods."""


@dataclass(frozen=True, slots=True)
class Times:
    """The effect of a fault on one reader, in seconds."""

    not_exact: float
    """Time for which answers were not exact for every pod."""
    share: float
    """The same as a share of all the time, 0 to 1."""
    healed: float
    """Time from the end of the fault until answers stayed exact."""


class Rig:
    """All parts. `clocks` are those of the publishers of pods a and b, and of the two readers."""

    def __init__(self, names: KeyNames, lease: float, clocks: Mapping[str, Clock]) -> None:
        self.names = names
        self.pods = {name: Pod(name, seed) for seed, name in enumerate(("a", "b"))}
        self.steps = True
        """Whether the engines change."""
        self.lease = lease
        self.readers: list[Reader] = []
        """The router in replica mode, and that in shared mode."""
        self.answers = 0
        self.writers_url = ""
        self._clocks = clocks
        self._rng = Random(7)
        self._tasks: list[asyncio.Task[None]] = []
        self._is_closed = False
        self._began = 0.0
        self._over = math.inf
        self._rebuilt: Counter[Cause] = Counter()

    async def start(self, url: str, readers: str, writers: str, *, publishes: bool) -> None:
        """Start everything; `url` is for the checks, the others for readers and writers."""
        self.writers_url = writers
        self.inspector = await connect(RedisSettings(url))
        for pod in self.pods.values():
            for _ in range(20):
                pod.step()
            if publishes:
                await self.publish(pod)
        self._tasks = [watched(self._step_forever(), "engines")]
        for kind in (Copying, Looking):
            redis = await connect(RedisSettings(readers))
            reader = kind(self.pods, redis, self.names, self.clock(kind.__name__))
            self.readers.append(reader)
            self._tasks.append(watched(self._ask_forever(reader), f"asking the {reader.name}"))

    inspector: Redis

    def clock(self, name: str) -> Clock:
        """Return the clock of a part, by name."""
        return self._clocks.get(name, asyncio.get_running_loop().time)

    async def publish(self, pod: Pod) -> Publisher:
        """Start a publisher of a pod."""
        redis = await connect(RedisSettings(self.writers_url))
        clock = self.clock(pod.name)
        publisher = Publisher(pod, redis, self.names, lease=self.lease, clock=clock)
        pod.publishers.append(publisher)
        pod.follow(publisher.hear)
        publisher.start()
        return publisher

    async def _step_forever(self) -> None:
        while True:
            if self.steps:
                for pod in self.pods.values():
                    pod.step()
            await asyncio.sleep(STEP_PAUSE)

    async def _ask_forever(self, reader: Reader) -> None:
        while True:
            await reader.ask(self._rng.choice(PROMPTS))
            self.answers += 1
            await asyncio.sleep(ASK_PAUSE)

    async def close(self) -> None:
        """Stop everything; raise errors of background tasks."""
        self._is_closed = True
        await cancel(self._tasks)
        for reader in self.readers:
            await reader.close()
        for publisher in self.publishers:
            await publisher.end()
        await self.inspector.close()
        self.look()
        if told := "; ".join(filter(None, (reader.told() for reader in self.readers))):
            raise WrongError(told)

    def look(self) -> None:
        """Raise errors of background tasks, and check that all parts are consistent."""
        for task in self._tasks:
            if task.done() and not task.cancelled() and (error := task.exception()):
                raise error
        groups = [one.tasks for one in self.readers] + [one.tasks for one in self.publishers]
        parts = [task for group in groups for task in group]
        ended = [task.get_name() for task in parts if task.done()]
        assert self._is_closed or not ended, f"{ended} ended by themselves"
        for reader in self.readers:
            reader.check()
        for publisher in self.publishers:
            check_writer(publisher.writer)

    @property
    def publishers(self) -> list[Publisher]:
        return [one for pod in self.pods.values() for one in pod.publishers]

    async def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait until a condition holds; `what` describes it."""

        async def holds() -> object:
            return condition()

        await self._until_found(holds, what)

    async def _until_found(self, find: Callable[[], Awaitable[_T | None]], what: str) -> _T:
        """Call `find` again and again until it returns something true, and return that."""
        deadline = time.monotonic() + PATIENCE
        while not (found := await find()):
            self.look()
            if time.monotonic() > deadline:
                raise AssertionError(f"waited in vain until {what}; {self.told()}")
            await asyncio.sleep(0.02)
        self.look()
        return found

    async def work(self, work: Callable[[], object]) -> None:
        """Run blocking work in a thread."""
        await asyncio.to_thread(work)
        self.look()

    async def goes_on(self, answers: int = 30) -> None:
        """Wait until both readers have given `answers` more answers."""
        goal = self.answers + answers
        await self.until(lambda: self.answers >= goal, "prompts are scored")

    def told(self) -> str:
        """Return a description of all parts' states, for error messages."""
        writers = [
            f"{one.pod.name}: {one.writer.state} {one.writer.applied}/{one.sequence} {one.writer.trouble}"
            for one in self.publishers
        ]
        readers = [f"{one.name}: {one.levels} {one.reasons.most_common(4)}" for one in self.readers]
        return "; ".join(writers + readers)

    # Faults and healing

    async def exact(self) -> None:
        """Wait until both readers have exact trust in every pod."""
        await self.until(
            lambda: all(reader.is_exact for reader in self.readers), "everything is exact"
        )

    async def begin(self) -> None:
        """Wait until both readers are exact and answer; then begin to count."""
        await self.exact()
        await self.goes_on()
        self.begin_count()

    def begin_count(self) -> None:
        """Reset the statistics of answers."""
        self._began = asyncio.get_running_loop().time()
        self._over = math.inf
        self._rebuilt = Counter[Cause]()
        self._rebuilt = self._outcome().rebuilds
        for reader in self.readers:
            reader.levels.clear()
            reader.reasons.clear()

    async def gone(self) -> None:
        """Wait until both readers have said that a pod has no publisher."""
        await self.until(
            lambda: all(
                any("no publisher" in reason for reason in reader.reasons)
                for reader in self.readers
            ),
            "pods are gone",
        )

    async def doubted(self, *readers: Reader) -> None:
        """Wait until each of `readers` (default: both) gives an answer that is not exact."""
        for reader in readers or self.readers:
            await self.until(
                lambda reader=reader: set(reader.levels) - {Level.EXACT}, f"{reader.name} doubts"
            )

    def over(self) -> None:
        """Record the end of the fault."""
        self._over = min(self._over, asyncio.get_running_loop().time())

    async def rewritten(self) -> None:
        """Wait until a publisher has found lost data and rewritten its pod."""
        await self.until(lambda: self._outcome().rebuilds, "the loss is noticed")

    async def lasts(self, seconds: float) -> None:
        """Let a fault last while everything goes on."""
        end = time.monotonic() + seconds
        await self.until(lambda: time.monotonic() >= end, "time passes")
        await self.goes_on()

    async def healed(self) -> Outcome:
        """Wait until all is written and exact, and compare it with the truth; return the outcome."""
        self.over()
        await self.exact()
        self.steps = False
        try:
            await self.lasts(PROMISED_SECONDS)
            outcome = self._outcome()
            # Now only the present content was held within the promised time.
            for reader in self.readers:
                for prompt in PROMPTS:
                    await self._ask_until_exact(reader, prompt)
            await self._sound()
        finally:
            self.steps = True
        self.look()
        return outcome

    async def _ask_until_exact(self, reader: Reader, prompt: tuple[int, ...]) -> None:
        async def ask() -> bool:
            await reader.ask(prompt)
            return reader.is_exact

        await self._until_found(ask, f"{reader.name} is exact again")

    def _outcome(self) -> Outcome:
        rebuilds: Counter[Cause] = Counter()
        for publisher in self.publishers:
            rebuilds += publisher.writer.counts.rebuilds
        return Outcome(
            {reader.name: self._times(reader) for reader in self.readers},
            {reader.name: reader.reasons.copy() for reader in self.readers},
            rebuilds - self._rebuilt,
        )

    def _times(self, reader: Reader) -> Times:
        now = asyncio.get_running_loop().time()
        marks = [(self._began, True)]
        marks += [(at, exact) for at, exact in reader.marks if at >= self._began]
        ends = [at for at, _ in marks[1:]] + [now]
        spans = [(end - at) for (at, exact), end in zip(marks, ends, strict=True) if not exact]
        healed = max((at for at, exact in marks if exact), default=now)
        return Times(sum(spans), sum(spans) / (now - self._began), max(0.0, healed - self._over))

    # What lies in Redis

    async def record(self, pod: str) -> Record | None:
        """Return a pod's record."""
        [fields] = await self._ask(("HGETALL", self.names.record(pod)))
        assert isinstance(fields, list)
        return read_record(fields_of(fields))

    async def owner(self, pod: str) -> str:
        record = await self.record(pod)
        assert record is not None
        assert record.claim is not None
        return record.claim.owner

    async def _sound_record(self, pod: str) -> Record:
        """Wait until a record is sound: on a busy machine a call of its writer may come too late."""

        async def read() -> Record | None:
            record = await self.record(pod)
            return record if record and record.sound else None

        return await self._until_found(read, f"the record of {pod} is sound")

    async def _ask(self, *asked: tuple[str, ...]) -> list[object]:
        replies = await self.inspector.run([Command(words) for words in asked], timeout=20.0)
        for reply in replies:
            assert not isinstance(reply, Exception), reply
        return replies

    async def _sound(self) -> None:
        """Compare all buckets with the truth; after a sweep they must have no dead entries."""
        for swept in (False, True):
            if swept:
                sweeper = Sweeper(
                    self.inspector,
                    self.names,
                    owner="rig",
                    clock=time.monotonic,
                    fields_per_second=1e6,
                )
                assert not await sweeper.sweep(insist=True)
            await self._compare(swept=swept)

    async def _compare(self, *, swept: bool) -> None:
        places: dict[int, tuple[str, Tier]] = {}
        tokens: dict[str, int] = {}
        for name in self.pods:
            record = await self._sound_record(name)
            assert record.claim is not None
            tokens[name] = record.token
            places |= {
                record.claim.slot(number): (name, spot.tier)
                for number, spot in enumerate(record.claim.places)
                if spot is not None
            }
        found: dict[str, Held] = {name: {} for name in self.pods}
        numbers = range(self.names.buckets)
        for fields in await self._ask(*(("HGETALL", self.names.bucket(n)) for n in numbers)):
            assert isinstance(fields, list)
            bucket = read_bucket(fields_of(fields))
            for name, token in tokens.items():
                said = bucket.checkpoints[checkpoint(name)]
                assert int(said.partition(b":")[0]) == token
            for blocks in bucket.segments.values():
                for key, slots in blocks.items():
                    assert not swept or slots <= places.keys()
                    for slot in slots & places.keys():
                        name, tier = places[slot]
                        found[name].setdefault(tier, set()).add(key)
        for name, pod in self.pods.items():
            assert found[name] == _some(pod.engine.truth()), f"what Redis holds of {name}"


@asynccontextmanager
async def rig(
    url: str,
    prefix: str,
    *,
    readers: str = "",
    writers: str = "",
    lease: float = LEASE,
    clocks: Mapping[str, Clock] | None = None,
    publishes: bool = True,
) -> AsyncIterator[Rig]:
    """Run all parts with a Redis; readers and writers may have URLs of their own.

    Unless `publishes`, others have to write what the engines hold (`publishers.outside`).
    """
    made = Rig(KeyNames(prefix), lease, clocks or {})
    async with AsyncExitStack() as stack:
        await made.start(url, readers or url, writers or url, publishes=publishes)
        stack.push_async_callback(made.close)
        yield made


@asynccontextmanager
async def alone(
    prefix: str, binary: Binary = "redis", *, lease: float = LEASE, **config: str
) -> AsyncIterator[tuple[Rig, RedisServer]]:
    """Run all parts with a server of their own, until all is exact."""
    with RedisServer(binary, **config) as server:
        async with rig(server.url, prefix, lease=lease) as made:
            await made.begin()
            yield made, server


def _some(held: Held) -> Held:
    return {tier: keys for tier, keys in held.items() if keys}
