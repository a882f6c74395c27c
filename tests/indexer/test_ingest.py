"""Ingestion against a true engine: whatever the transport does, exact means exact."""

from collections import deque

import pytest
from engine_model import EngineModel
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from indexer.engines import vllm
from indexer.engines.event import Tier
from indexer.ingest import Ingest, RankIngest, RankSource
from indexer.memory import MemoryIndex
from indexer.stream import AskReplay, State
from indexer.trust import Level


def new_ingest() -> Ingest:
    return Ingest(
        MemoryIndex(), hash_seed="", pending_bytes=1 << 20, stale_after=1.0, clock=lambda: 0.0
    )


def source(pod: str = "p", **changes: object) -> RankSource:
    fields = {"rank": 0, "model": "m", "decode": vllm.decode, "has_replay": True} | changes
    return RankSource(pod, **fields)  # type: ignore[arg-type]


def held(rank: RankIngest) -> set[int]:
    return rank.resolver.held().get(Tier.GPU, set())


TOKENS = st.lists(st.integers(0, 2), min_size=2, max_size=8).map(tuple)


class HostileTransport(RuleBasedStateMachine):
    """One engine, one rank, and everything that can happen between them."""

    has_replay = True

    def __init__(self) -> None:
        super().__init__()
        self.engine = EngineModel()
        self.lives = [self.engine.snapshots]
        self.ingest = new_ingest()
        self.rank = self.ingest.add(source(has_replay=self.has_replay))
        self.bystander = self.ingest.add(source("other", has_replay=False))
        self.bystander.connected()
        other = EngineModel()
        self.bystander.live("", *other.store((0, 1, 2, 0)))
        self.others = other.held()
        self.wire: deque[tuple[int, bytes]] = deque()
        self.answers: deque[tuple[int, int | None, bytes]] = deque()
        self.connected = False

    def say(self, message: tuple[int, bytes] | None) -> None:
        if message is not None and self.connected:
            self.wire.append(message)

    def ask(self, asked: AskReplay | None) -> None:
        if asked is None:
            return
        for sequence, payload in self.engine.buffer:
            if sequence >= asked.start:
                self.answers.append((asked.ticket, sequence, payload))
        self.answers.append((asked.ticket, None, b""))

    @rule(tokens=TOKENS)
    def store(self, tokens: tuple[int, ...]) -> None:
        self.say(self.engine.store(tokens))

    @rule(which=st.integers(0, 30))
    def evict(self, which: int) -> None:
        self.say(self.engine.evict(which))

    @rule()
    def clear(self) -> None:
        self.say(self.engine.clear())

    @rule()
    def restart(self) -> None:
        self.engine.restart()
        self.lives.append(self.engine.snapshots)
        self.cut()

    @rule()
    def restart_unnoticed(self) -> None:
        # A proxy between keeps our connection, so that only the sequence can tell.
        self.wire.clear()
        self.engine.restart()
        self.lives.append(self.engine.snapshots)

    @precondition(lambda self: not self.connected)
    @rule()
    def connect(self) -> None:
        self.connected = True
        self.ask(self.rank.connected())

    @precondition(lambda self: self.connected)
    @rule()
    def cut(self) -> None:
        if self.connected:
            self.connected = False
            self.wire.clear()
            self.rank.disconnected()

    @precondition(lambda self: self.wire)
    @rule()
    def deliver(self) -> None:
        self.ask(self.rank.live("", *self.wire.popleft()))

    @precondition(lambda self: self.wire)
    @rule()
    def deliver_twice(self) -> None:
        message = self.wire.popleft()
        self.ask(self.rank.live("", *message))
        self.ask(self.rank.live("", *message))

    @precondition(lambda self: self.wire)
    @rule()
    def lose(self) -> None:
        self.wire.popleft()

    @precondition(lambda self: self.answers)
    @rule()
    def answer(self) -> None:
        ticket, sequence, payload = self.answers.popleft()
        if sequence is None:
            self.ask(self.rank.replay_ended(ticket))
        else:
            self.ask(self.rank.replayed(ticket, sequence, payload))

    @precondition(lambda self: self.answers)
    @rule()
    def replay_times_out(self) -> None:
        ticket = self.answers[-1][0]
        self.answers.clear()
        self.ask(self.rank.replay_failed(ticket, "no answer"))

    @rule(budget=st.integers(1, 50))
    def tick(self, budget: int) -> None:
        self.ingest.tick(budget)

    @rule()
    def settle(self) -> None:
        """Let everything arrive; then, with replay, the view is the truth or says that it is not."""
        if not self.connected:
            self.connect()
        self.say(self.engine.clear())
        for _ in range(500):
            if not self.wire and not self.answers:
                break
            if self.answers:
                self.answer()
            else:
                self.deliver()
        assert not self.wire, "replays do not come to an end"
        assert not self.answers, "replays do not come to an end"
        if self.rank.trust.level is Level.EXACT:
            assert held(self.rank) == self.engine.held()

    @invariant()
    def parts_agree(self) -> None:
        self.ingest.check()

    @invariant()
    def exact_means_exact(self) -> None:
        if self.rank.trust.level is not Level.EXACT:
            return
        assert self.rank.stream.state is not State.REPLAYING
        sequence = self.rank.stream.sequence
        number = -1 if sequence is None else sequence
        truths = [life[number] for life in self.lives if number in life]
        assert held(self.rank) in truths

    @invariant()
    def another_rank_is_untouched(self) -> None:
        assert held(self.bystander) == self.others


class HostileTransportWithoutReplay(HostileTransport):
    """The same without a replay endpoint. A restart behind a proxy's back cannot be seen then."""

    has_replay = False

    def restart_unnoticed(self) -> None:
        self.restart()


PROFILE = settings(max_examples=120, stateful_step_count=50, deadline=None)
HostileTransport.TestCase.settings = PROFILE
HostileTransportWithoutReplay.TestCase.settings = PROFILE
TestHostileTransport = HostileTransport.TestCase
TestHostileTransportWithoutReplay = HostileTransportWithoutReplay.TestCase


def test_a_malformed_frame_is_dropped_counted_and_marks_the_rank() -> None:
    rank = new_ingest().add(source())
    engine = EngineModel()
    asked = rank.connected()
    assert asked
    rank.replay_ended(asked.ticket)
    rank.live("", *engine.store((0, 1)))
    rank.live("", 1, b"\xc1 nonsense")
    assert rank.trust.level is Level.DEGRADED
    assert rank.malformed == 1
    engine.sequence = 1
    rank.live("", *engine.store((2, 2)))
    assert held(rank) == engine.held()


def test_a_frame_with_a_neighbours_topic_is_not_taken() -> None:
    rank = new_ingest().add(source(topic="kv@pod-1", has_replay=False))
    rank.connected()
    engine = EngineModel()
    rank.live("kv@pod-10", *engine.store((0, 1)))
    assert held(rank) == set()


def test_a_rank_is_followed_once() -> None:
    ingest = new_ingest()
    ingest.add(source())
    with pytest.raises(ValueError, match="followed already"):
        ingest.add(source())


def test_a_removed_rank_holds_nothing_and_its_slots_come_back() -> None:
    ingest = new_ingest()
    rank = ingest.add(source(has_replay=False))
    rank.connected()
    engine = EngineModel()
    rank.live("", *engine.store((0, 1, 2, 1)))
    keys = list(engine.held())
    ingest.remove("p", 0)
    assert all(not run.slots for run in ingest.index.holders(keys))
    ingest.tick(1000)
    ingest.tick(1000)
    again = ingest.add(source(has_replay=False))
    again.connected()
    again.live("", *EngineModel().store((1, 1)))
    assert ingest.index.stats().keys == 1
    ingest.check()
