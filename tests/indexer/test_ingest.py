"""Ingestion against true engines: whatever the transport does, exact means exact.

What is asserted after every step are the design's invariants: names, copies, keys and index agree;
while a rank's trust is exact the index holds what its engine held at that batch; no rank ever changes
another's holdings. One file: the tests by hand send over the state machine's transport.
"""

from collections import deque
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from msgspec.structs import replace

from tests.examples import examples
from tests.indexer.consistent import check
from tests.indexer.engine_model import EngineModel
from tests.indexer.followed import following, held, new_ingest, source
from tests.indexer.memory_index import MemoryIndex
from tests.indexer.sides import stored
from warmpath.indexer.compiled.array_index import ArrayIndex
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.follow.stream_source import COPIES, NAMESPACES, RankIngest, SavedRank
from warmpath.indexer.index.contract import Index
from warmpath.indexer.ranks import Ingest
from warmpath.indexer.resolve.resolver import Resolver
from warmpath.indexer.stream.machine import StreamState
from warmpath.indexer.stream.replay import FIRST_PATIENCE, AskReplay
from warmpath.indexer.trust import Level

Step = tuple[int, ...] | int
"""A prompt to serve, or which block to evict."""


class Line:
    """One engine, the rank that follows it, and the wire between them."""

    def __init__(self, ingest: Ingest, number: int, *, has_replay: bool) -> None:
        self.engine = EngineModel(has_digests=number == 1)
        self.lives = [self.engine.snapshots]
        # Two ranks of one pod, and another pod: none may touch another.
        pod, rank = ("p", number) if number < 2 else ("q", 0)
        self.ingest = ingest
        self.source = source(pod, rank=rank, has_replay=has_replay, capacity=self.engine.capacity)
        self.rank = self.follow()
        self.wire: deque[tuple[int, bytes]] = deque()
        self.answers: deque[tuple[int, int | None, bytes]] = deque()
        self.asked: AskReplay | None = None
        """The replay that the publisher has not begun to answer."""
        self.connected = False
        self.restarts_seen = -1
        """Restarts seen when the engine restarted behind a proxy's back; -1: it did not."""
        self.settled = False
        """Whether the rank was healed by turn-over since its last full view."""

    def follow(self) -> RankIngest:
        """Begin to follow, and note when the rank is healed by turn-over or has a full view again.

        Its trust alone does not tell: between two checks it may go on to another reason.
        """
        rank = self.ingest.add(self.source)
        rank.ask = self.ask
        for name, settled in (("turned_over", True), ("cleared", False), ("_begin_life", False)):
            setattr(rank.stream, name, self.noting(getattr(rank.stream, name), settled=settled))
        return rank

    def noting(self, act: Callable[..., None], *, settled: bool) -> Callable[..., None]:
        def noted(*args: object) -> None:
            self.settled = settled
            act(*args)

        return noted

    @property
    def lossy(self) -> bool:
        """Whether batches may get lost here.

        A restart that no connection shows, whose new life loses exactly as many batches as the old
        one had, looks like nothing at all, and no follower can tell.
        """
        return self.restarts_seen in (-1, self.rank.stream.counts.restarts - 1)

    @property
    def follows_this_life(self) -> bool:
        """Whether the engine's last batch was applied here: then a replay has only later ones to bring."""
        published = self.engine.buffer
        return bool(published) and self.rank.stream._digests.has(*published[-1])

    def say(self, message: tuple[int, bytes] | None) -> None:
        if message is not None and self.connected:
            self.wire.append(message)

    def do(self, step: Step) -> tuple[int, bytes] | None:
        """Let the engine store a prompt's blocks, or evict a block."""
        return self.engine.evict(step) if isinstance(step, int) else self.engine.store(step)

    def ask(self, asked: AskReplay) -> None:
        self.asked = asked

    def answer(self) -> None:
        if not self.answers and self.asked is not None:
            asked, self.asked = self.asked, None
            for sequence, payload in self.engine.buffer:
                if sequence >= asked.start:
                    self.answers.append((asked.ticket, sequence, payload))
            self.answers.append((asked.ticket, None, b""))
        if not self.answers:
            return
        ticket, number, payload = self.answers.popleft()
        if number is None:
            self.rank.replay_ended(ticket)
        else:
            self.rank.replayed(ticket, number, payload)

    def break_off(self) -> None:
        """Let the replay that runs, or is to run, fail where it is."""
        if self.answers:
            ticket = self.answers[-1][0]
            self.answers.clear()
        elif self.asked is not None:
            ticket, self.asked = self.asked.ticket, None
        else:
            return
        self.rank.replay_failed(ticket, "no answer")

    def deliver(self, times: int = 1) -> None:
        frames = [("", *self.wire.popleft()) for _ in range(min(times, len(self.wire)))]
        self.rank.live_many(frames)

    def cut(self) -> None:
        if self.connected:
            self.connected = False
            self.restarts_seen = -1
            self.wire.clear()
            self.rank.disconnected()

    def connect(self) -> None:
        self.connected = True
        self.rank.connected()

    def restart_router(self, *, one_by_one: bool) -> None:
        """Let another process go on from what this one saves, or what pure Python would."""
        before = self.rank.state.held()
        saved = msgspec.msgpack.encode(self.rank.save())
        pure = Resolver("m", "", orphan_bytes=1)
        pure.restore(msgspec.msgpack.decode(saved, type=SavedRank).resolver)
        check(pure)
        assert {spot: keys for spot, keys in pure.names.held().items() if keys} == {
            spot: keys for spot, keys in before.items() if keys
        }
        self.connected = False
        self.restarts_seen = -1
        self.wire.clear()
        self.answers.clear()
        self.asked = None
        self.ingest.remove(self.source.pod, self.source.rank)
        self.rank = self.follow()
        again = msgspec.msgpack.decode(saved, type=SavedRank)
        if one_by_one:
            again = replace(again, resolver=again.resolver.one_by_one())
        self.rank.restore(again)
        assert self.rank.state.held() == before

    def settle(self) -> None:
        """Let everything arrive."""
        if not self.connected:
            self.connect()
        for _ in range(2000):
            if not self.wire and not self.answers and self.asked is None:
                return
            if self.answers or self.asked is not None:
                self.answer()
            else:
                self.deliver()
        raise AssertionError("replays do not come to an end")

    def check(self) -> None:
        trust, stream = self.rank.trust, self.rank.stream
        if trust.level is not Level.EXACT:
            return
        assert stream.state is not StreamState.REPLAYING
        number = -1 if stream.sequence is None else stream.sequence
        truths = [life[number] for life in self.lives if number in life]
        seen = {tier: held(self.rank, tier) for tier in (Tier.GPU, Tier.CPU)}
        if self.settled:
            # A block that was reused in silence may be missing; none is claimed that is gone.
            assert any(all(seen[tier] <= truth[tier] for tier in seen) for truth in truths)
        else:
            assert seen in truths


ODDITIES: list[tuple[str, dict[str, object]]] = [
    ("", {"block_hashes": "new"}),
    ("", {"block_hashes": None, "group_idx": -1}),
    ("BlockDreamt", {}),
    ("BlockRemoved", {"block_hashes": [[1]]}),
]
"""Types and fields that make an event one that cannot be read."""

Deed = Callable[[EngineModel, int], tuple[int, bytes] | None]
DEEDS: list[Deed] = [
    EngineModel.touch,
    EngineModel.evict,
    EngineModel.evict,
    EngineModel.offload,
    lambda engine, _: engine.drop_offloaded(),
    lambda engine, _: engine.clear(),
]
"""What an engine may do beside serving requests; which block it concerns is a number."""

TOKENS = st.lists(st.integers(0, 2), min_size=2, max_size=8).map(tuple)
WHICH = st.integers(0, 30)
STEPS = st.lists(st.one_of(TOKENS, WHICH), min_size=1, max_size=8)
LATER = st.lists(TOKENS, min_size=4, max_size=12)


class HostileTransport(RuleBasedStateMachine):
    """Three ranks of two pods, and everything that can happen between engine and router.

    Without a replay endpoint a restart behind a proxy's back cannot be seen.
    """

    def __init__(self, index: Callable[[], Index], *, has_replay: bool) -> None:
        super().__init__()
        self.has_replay = has_replay
        self.ingest = new_ingest(index)
        self.lines = [Line(self.ingest, n, has_replay=has_replay) for n in range(3)]
        self.line = self.lines[0]
        self.others: list[dict[Tier, set[int]]] = []

    def at(self, number: int) -> Line:
        self.line = self.lines[number % len(self.lines)]
        self.others = [self.seen(line) for line in self.lines]
        return self.line

    def seen(self, line: Line) -> dict[Tier, set[int]]:
        return {tier: held(line.rank, tier) for tier in (Tier.GPU, Tier.CPU)}

    @rule(
        n=WHICH,
        tokens=TOKENS,
        lora=st.sampled_from(["", "", "a"]),
        salt=st.sampled_from(["", "", "s"]),
    )
    def store(self, n: int, tokens: tuple[int, ...], lora: str, salt: str) -> None:
        line = self.at(n)
        line.say(line.engine.store(tokens, lora, salt))

    @rule(n=WHICH, batches=st.lists(TOKENS, min_size=3, max_size=8))
    def serve_many(self, n: int, batches: list[tuple[int, ...]]) -> None:
        line = self.at(n)
        for tokens in batches:
            line.say(line.engine.store(tokens))

    @rule(n=WHICH, missed=STEPS, later=LATER)
    def miss_some_and_go_on(self, n: int, missed: list[Step], later: list[tuple[int, ...]]) -> None:
        line = self.at(n)
        line.settle()
        if not line.lossy:
            return
        for step in missed:
            line.do(step)
        for tokens in later:
            line.say(line.engine.store(tokens))
        line.settle()

    @rule(n=WHICH, deeds=st.lists(st.tuples(st.sampled_from(DEEDS), WHICH), min_size=1, max_size=4))
    def engine_does(self, n: int, deeds: list[tuple[Deed, int]]) -> None:
        line = self.at(n)
        for deed, which in deeds:
            line.say(deed(line.engine, which))

    @rule(n=WHICH, unnoticed=st.booleans())
    def restart(self, n: int, *, unnoticed: bool) -> None:
        line = self.at(n)
        line.engine.restart()
        line.lives.append(line.engine.snapshots)
        if unnoticed and self.has_replay:
            # A proxy between keeps our connection, so that only the sequence can tell.
            line.wire.clear()
            line.restarts_seen = line.rank.stream.counts.restarts
        else:
            line.cut()

    @rule(n=WHICH, one_by_one=st.booleans())
    def restart_router(self, n: int, *, one_by_one: bool) -> None:
        self.at(n).restart_router(one_by_one=one_by_one)

    @rule(n=WHICH)
    def connect(self, n: int) -> None:
        line = self.at(n)
        if not line.connected:
            line.connect()

    @rule(n=WHICH)
    def connect_anew(self, n: int) -> None:
        """Connect again, and let everything arrive: an exact rank knows the newest batch then."""
        line = self.at(n)
        line.cut()
        line.settle()
        if line.rank.trust.level is Level.EXACT:
            published = line.engine.sequence
            assert line.rank.sequence == (published if published >= 0 else None)

    @rule(n=WHICH)
    def cut(self, n: int) -> None:
        self.at(n).cut()

    @rule(n=WHICH, times=st.integers(1, 6))
    def deliver(self, n: int, times: int) -> None:
        self.at(n).deliver(times)

    @rule(n=WHICH)
    def deliver_twice(self, n: int) -> None:
        line = self.at(n)
        if line.wire:
            message = line.wire.popleft()
            line.rank.live("", *message)
            line.rank.live("", *message)

    @rule(n=WHICH)
    def lose(self, n: int) -> None:
        line = self.at(n)
        if line.wire and line.lossy:
            line.wire.popleft()

    @rule(n=WHICH, at=st.integers(0, 200), bits=st.integers(1, 255))
    def corrupt(self, n: int, at: int, bits: int) -> None:
        """Damage a batch so that it cannot be read; damage that can be read is nobody's to see."""
        line = self.at(n)
        if line.wire:
            sequence, payload = line.wire.popleft()
            damaged = bytearray(payload)
            damaged[at % len(damaged)] ^= bits
            line.wire.appendleft((sequence, b"\xc1" + bytes(damaged)))

    @rule(n=WHICH)
    def somebody_says_that_it_restarted(self, n: int) -> None:
        line = self.at(n)
        line.rank.engine_restarted("as somebody says")
        if line.rank.sequence is not None and line.connected:
            assert line.rank.trust.level is not Level.EXACT

    @rule(n=WHICH, is_batch=st.booleans())
    def junk(self, n: int, *, is_batch: bool) -> None:
        """Let something arrive that is no frame, perhaps in place of a batch."""
        line = self.at(n)
        if is_batch and line.wire and line.lossy:
            line.wire.popleft()
            line.rank.frame_malformed("torn")
            assert line.rank.trust.level is not Level.EXACT
        elif line.connected:
            line.rank.frame_malformed("junk")

    @rule(
        n=WHICH, steps=STEPS, which=WHICH, how=st.sampled_from(ODDITIES), later=st.just([]) | LATER
    )
    def misspell(
        self,
        n: int,
        steps: list[Step],
        which: int,
        how: tuple[str, dict[str, object]],
        later: list[tuple[int, ...]],
    ) -> None:
        """Let the engine write one event of each batch as nobody understands it."""
        line = self.at(n)
        if later:
            line.settle()
        for step in steps:
            batch = line.do(step)
            if batch is not None:
                kind, fields = how
                line.say((batch[0], line.engine.misspell(which, kind, **fields)))
        for tokens in later:
            line.say(line.engine.store(tokens))
        if later:
            line.settle()

    @rule(
        n=WHICH,
        lost=st.lists(TOKENS, max_size=3),
        answered=st.lists(st.integers(0, 6), min_size=1, max_size=FIRST_PATIENCE - 1),
        during=st.lists(TOKENS, max_size=1),
    )
    def break_replays_off(
        self,
        n: int,
        lost: list[tuple[int, ...]],
        answered: list[int],
        during: list[tuple[int, ...]],
    ) -> None:
        """Let the replay that closes a gap break off after some messages, and be resumed."""
        line = self.at(n)
        line.settle()
        if not line.lossy or not self.has_replay:
            return
        # A life may end unseen, with more batches than the buffer holds.
        was_exact = line.rank.trust.level is Level.EXACT and line.follows_this_life
        for tokens in lost:
            line.engine.store(tokens)
        line.say(line.engine.store((0, 1)))
        line.deliver()
        for times in answered:
            for _ in range(times):
                line.answer()
            for tokens in during:
                line.say(line.engine.store(tokens))
                line.deliver()
            line.break_off()
        line.settle()
        is_kept = len(lost) + len(answered) * len(during) + 2 <= line.engine.buffer_steps
        # The replay may bring a batch of a life that was not seen before.
        if is_kept and line.engine.can_replay_all() and was_exact:
            assert line.rank.trust.level is Level.EXACT

    @rule(n=WHICH)
    def answer(self, n: int) -> None:
        self.at(n).answer()

    @rule(n=WHICH, times=st.integers(1, 12))
    def replay_breaks_off(self, n: int, times: int) -> None:
        line = self.at(n)
        for _ in range(times):
            line.break_off()

    @rule(budget=st.integers(1, 50))
    def tick(self, budget: int) -> None:
        self.ingest.tick(budget)

    @rule(n=WHICH, clears=st.booleans())
    def settle(self, n: int, *, clears: bool) -> None:
        line = self.at(n)
        if clears:
            if not line.connected:
                line.connect()
            line.say(line.engine.clear())
        line.settle()

    @invariant()
    def parts_agree(self) -> None:
        check(self.ingest)

    @invariant()
    def exact_means_exact(self) -> None:
        for line in self.lines:
            line.check()

    @invariant()
    def another_rank_is_untouched(self) -> None:
        for line, before in zip(self.lines, self.others, strict=False):
            if line is not self.line:
                assert self.seen(line) == before


@pytest.mark.random
@pytest.mark.parametrize(("index", "share"), [(ArrayIndex, 1), (MemoryIndex, 2)])
@pytest.mark.parametrize("has_replay", [True, False])
def test_exact_means_exact_whatever_the_transport_does(
    index: Callable[[], Index], share: int, *, has_replay: bool
) -> None:
    run_state_machine_as_test(
        lambda: HostileTransport(index, has_replay=has_replay),
        settings=settings(max_examples=examples(300) // share, stateful_step_count=40),
    )


def test_a_long_disconnection_is_stale_and_ends_with_the_connection() -> None:
    now = 10.0
    rank = new_ingest(stale_after=1.0, clock=lambda: now).add(source(has_replay=True))
    rank.connected()
    rank.live("", *EngineModel().store((0, 1)))
    rank.replay_ended(1)
    assert rank.trust.level is Level.EXACT
    rank.disconnected()
    now = 10.9
    rank.tick()
    assert rank.trust.level is Level.DEGRADED
    now = 11.0
    rank.tick()
    assert rank.trust.level is Level.STALE
    assert rank.lost_at == 10.0
    rank.connected()
    assert rank.trust.level is Level.DEGRADED, "a replay has to show what was missed"
    rank.replay_ended(3)
    assert rank.trust.level is Level.COLD, "the engine restarted"


def odd_batch(odd: dict[str, object]) -> tuple[RankIngest, EngineModel]:
    """Return a rank that was sent an odd event between the removal of a block and a store."""
    rank, engine = following(capacity=8), EngineModel()
    rank.live("", *engine.store((0, 1, 2, 3)))
    _, removal = engine.evict(1) or (0, b"")
    _, store = engine.store((5, 5))
    events = [msgspec.msgpack.decode(one)[1] for one in (removal, store)]
    batch = msgspec.msgpack.encode([1.0, [*events[0], odd, *events[1]], 0])
    engine.sequence = 1
    rank.live_many([("", 1, batch)])
    return rank, engine


@pytest.mark.parametrize(
    "odd",
    [
        {"extra_keys": [[{"tag": "new", "value": 1}]]},
        {"extra_keys": [[["mm", "img", 3]]]},
        {"group_idx": "0"},
        {"group_idx": -1, "kv_cache_spec_kind": "full_attention"},
        {"token_ids": [-1, 5]},
    ],
    ids=str,
)
def test_a_store_that_cannot_be_read_is_missing_and_nothing_beside_it(
    odd: dict[str, object],
) -> None:
    rank, engine = odd_batch(stored([9], [7, 7], None, 2) | odd)
    assert held(rank) == engine.held()
    assert rank.malformed == 1
    assert rank.trust.level is Level.DEGRADED
    assert "BlockStored of batch 1 cannot be read" in rank.trust.reason
    assert rank.trust.reason.endswith("the blocks that it stored are missing")
    for tokens in ((4, number) for number in range(8)):
        assert held(rank) == engine.held(), "nothing that is known was ever in doubt"
        rank.live("", *engine.store(tokens))
    assert rank.trust.level is Level.EXACT, "as many were stored as the cache holds"
    assert held(rank) == engine.held()


@pytest.mark.parametrize(
    "odd",
    [
        {"type": "BlockRemoved", "block_hashes": [[1]], "medium": "GPU"},
        {"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU", "group_idx": -1},
        {"type": "BlockMoved", "block_hashes": [1]},
        {"kind": "of another make"},
    ],
    ids=str,
)
def test_an_event_that_may_have_removed_something_puts_what_is_shown_in_doubt(
    odd: dict[str, object],
) -> None:
    rank, engine = odd_batch(odd)
    assert held(rank) == engine.held()
    assert rank.trust.level is Level.DEGRADED
    assert f"{odd.get('type', 'an event')} of batch 1 cannot be read" in rank.trust.reason
    for tokens in ((4, number) for number in range(8)):
        rank.live("", *engine.store(tokens))
    assert rank.trust.level is Level.EXACT
    assert held(rank) <= engine.held()


def test_a_message_that_is_no_frame_costs_trust_until_the_next_batch_is_in_order() -> None:
    rank, engine = following(), EngineModel()
    rank.live("", *engine.store((0, 1)))
    rank.frame_malformed("3 bytes")
    assert rank.trust.level is Level.DEGRADED
    assert rank.trust.reason == "a frame is malformed: 3 bytes"
    rank.live_many([("", *engine.store((2, 1)))])
    assert rank.trust.level is Level.EXACT
    assert held(rank) == engine.held()


def test_a_frame_with_a_neighbours_topic_is_not_taken() -> None:
    rank = following(topic="kv@pod-1")
    rank.live("kv@pod-10", *EngineModel().store((0, 1)))
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
    assert not ingest.index.stretches(keys)
    ingest.tick(1000)
    ingest.tick(1000)
    again = ingest.add(source(has_replay=False))
    again.connected()
    again.live("", *EngineModel().store((1, 1)))
    assert ingest.index.stats().keys == 1
    check(ingest)


def test_a_limit_that_comes_again_after_each_restart_is_said_once() -> None:
    saved = None
    for _ in range(3):
        rank = new_ingest().add(source())
        if saved is not None:
            rank.restore(saved)
        rank.limit("requests have salts", NAMESPACES)
        rank.limit("a block was stored twice", COPIES)
        saved = rank.save()
    assert saved is not None
    assert sorted(saved.limit.split("; ")) == ["a block was stored twice", "requests have salts"]
