"""Answers from the shared index against the truth, while any of its buckets fail and heal.

What is told as fresh is the truth. What is not is what was last read, and says so.
One file: one state machine, and what it once found.
"""

import asyncio
import math
from collections.abc import Iterator
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.examples import examples
from tests.indexer.segment_values import encode, pack
from tests.indexer.shared.asked_server import HeldRedis
from tests.indexer.shared.inside import check_remote
from tests.indexer.shared.written_pod import GPU, KEYSPACE, WrittenPod, prompt_of
from warmpath.indexer.keys.key import pack_words
from warmpath.indexer.keys.segment import SEGMENT
from warmpath.indexer.keys.segment_value import decode
from warmpath.indexer.shared.layout.names import BORN, WRITES, KeyNames
from warmpath.indexer.shared.query.index import RemoteIndex
from warmpath.indexer.shared.records.registry import LATE, Registry
from warmpath.indexer.trust import PROMISED_SECONDS, Level
from warmpath.lab.verify.structure import holders

SPILLED = bytes([2, 0, 0, 0, 9, 0, 0, 0])
SEGMENTS = range(4)
BUCKETS = 3
BLOCKS = 3
"""Of a prompt's last segment, at most."""


def key(segment: int, block: int) -> int:
    return 1000 * (segment + 1) + block


class RemoteMachine(RuleBasedStateMachine):
    """One pod; prompts are the first segments, the last of them cut short."""

    @initialize()
    def begin(self) -> None:
        self.runner = asyncio.Runner()
        self.now = 1000.0
        self.redis = HeldRedis()
        self.names = KeyNames("t", BUCKETS)
        registry = Registry(self.redis, self.names, lambda: self.now)
        self.remote = RemoteIndex(
            self.redis, self.names, registry, deadline=1.0, stale_after=5.0, clock=lambda: self.now
        )
        self.births = count()
        for bucket in range(BUCKETS):
            self.redis.hashes[self.names.bucket(bucket)] = {BORN: self.birth()}
        self.pod = WrittenPod(self.redis, self.names, "p", 77)
        self.rank = self.remote.add("p", 0, keyspace=KEYSPACE, ranks=1)
        self.read_at = self.confirmed_at = -math.inf
        """When the record was last read, and before its last confirmation was read."""
        self.tell()
        self.poll()
        self.confirm()
        assert self.rank.trust.level is Level.EXACT
        self.truth: dict[int, set[int]] = {segment: set() for segment in SEGMENTS}

    def poll(self) -> None:
        self.runner.run(self.remote.poll())
        if self.is_told:
            self.is_told = False
            self.confirmed_at = self.read_at
        self.read_at = self.now

    def tell(self) -> None:
        self.runner.run(self.pod.tell())
        self.is_told = True

    def confirm(self) -> None:
        """Let the pod's writer confirm its record, and the router read that."""
        self.tell()
        self.poll()

    def grow_old(self) -> None:
        """Let what was read so far be old, while the pod's writer goes on."""
        self.poll()
        self.now += 1
        self.confirm()

    def birth(self) -> bytes:
        return b"%d.0" % next(self.births)

    def bucket(self, segment: int) -> int:
        return self.names.bucket_of(key(segment, 0))

    @rule(
        segment=st.sampled_from(SEGMENTS),
        held=st.sets(st.integers(0, SEGMENT - 1)),
        spilled=st.booleans(),
    )
    def change(self, segment: int, held: set[int], *, spilled: bool) -> None:
        """Let the pod hold these blocks of a segment; what was read before is old by then."""
        self.grow_old()
        self.truth[segment] = held
        bucket = self.redis.hashes.setdefault(self.names.bucket(self.bucket(segment)), {})
        name = pack_words([key(segment, 0)])
        for field in [field for field in bucket if field[:8] == name]:
            del bucket[field]
        blocks = {key(segment, block): [self.pod.slot] for block in held}
        if spilled and blocks:
            bucket[name] = SPILLED
            for one, slots in blocks.items():
                bucket[name + pack_words([one])] = encode(pack({one: slots}))
        elif blocks:
            bucket[name] = encode(pack(blocks))

    @rule()
    def come_back_empty(self) -> None:
        """Lose everything and have it written again: nobody is sure of it before the records say so."""
        self.grow_old()
        kept = self.redis.hashes
        self.redis.hashes = {}
        self.redis.disruptions += 1
        reachable = not self.redis.unreachable and not self.remote.reach.open_buckets
        self.runner.run(self.remote.refresh([pack_words([key(0, 0)])], 1.0))
        found, doubt = self.remote.match(prompt_of([key(0, 0)]))
        assert self.rank.in_answer(doubt).level is not Level.EXACT
        assert not reachable or not found
        self.redis.hashes = kept
        self.confirm()
        self.grow_old()

    @precondition(lambda self: not self.redis.unreachable and not self.remote.reach.open_buckets)
    @rule(segment=st.sampled_from(SEGMENTS), is_made_anew=st.booleans())
    def lose_a_bucket(self, segment: int, *, is_made_anew: bool) -> None:
        """Lose it behind everyone's back: nobody is sure before its writers have looked again."""
        self.grow_old()
        name = self.names.bucket(self.bucket(segment))
        kept = self.redis.hashes.pop(name)
        if is_made_anew:
            self.redis.hashes[name] = {BORN: self.birth()}
        keys = [key(segment, block) for block in range(BLOCKS)]
        for _ in range(2):
            self.runner.run(self.remote.refresh([pack_words(keys)], 1.0))
            found, doubt = self.remote.match(prompt_of(keys))
            assert found == []
            trust = self.rank.in_answer(doubt)
            assert trust.level is Level.DEGRADED
            assert "lost" in trust.reason
            self.poll()
            self.now += 1
        self.redis.hashes[name] = kept | {BORN: self.birth()}
        self.runner.run(self.remote.refresh([pack_words(keys)], 1.0))
        self.poll()
        assert self.rank.trust.level is Level.DEGRADED
        self.confirm()
        self.grow_old()

    @precondition(lambda self: not self.redis.unreachable and not self.remote.reach.open_buckets)
    @rule(segment=st.sampled_from(SEGMENTS))
    def go_back(self, segment: int) -> None:
        """Load old data behind everyone's back: nobody believes the first that are read."""
        name = self.names.bucket(self.bucket(segment))
        keys = pack_words([key(segment, block) for block in range(BLOCKS)])
        writes = next(self.births)
        for count_ in (writes, writes - 1):
            self.redis.hashes[name][WRITES] = b"%d" % count_
            self.grow_old()
            self.runner.run(self.remote.refresh([keys], 1.0))
        _, doubt = self.remote.match(prompt_of([key(segment, 0)]))
        assert self.rank.in_answer(doubt).level is Level.DEGRADED
        self.redis.hashes[name][WRITES] = b"%d" % writes
        self.confirm()
        self.grow_old()

    @rule()
    def claim_anew(self) -> None:
        """Write everything anew under another claim: what was read before has none of its slots."""
        self.ask_again(len(SEGMENTS))
        old = self.pod.slot
        self.pod.base += 1
        self.pod.token += 1
        for fields in self.redis.hashes.values():
            for name, value in fields.items():
                if len(name) in {8, 16} and value[0] == 1:
                    # What lies under a place that was dropped stays where it is, and is dead.
                    held = {
                        one: [self.pod.slot] if old in slots else slots
                        for one, slots in holders(decode(value)).items()
                    }
                    fields[name] = encode(pack(held))
        assert self.pod.slot != old
        self.now += 0.001
        self.confirm()

    @rule(seconds=st.floats(0, 3))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(bucket=st.integers(0, BUCKETS - 1), away=st.booleans())
    def turn(self, bucket: int, *, away: bool) -> None:
        name = self.names.bucket(bucket)
        self.redis.unreachable.discard(name)
        if away:
            self.redis.unreachable.add(name)

    @rule(all_buckets=st.booleans())
    def probe(self, *, all_buckets: bool) -> None:
        self.runner.run(self.remote.reach.probe(all_buckets=all_buckets))

    @precondition(lambda self: not self.redis.unreachable)
    @rule()
    def heal(self) -> None:
        """However long it was away, all is asked again after one probe."""
        self.now += 20
        self.runner.run(self.remote.reach.probe(all_buckets=False))
        assert self.remote.reach.open_buckets == 0

    @rule(
        segments=st.integers(1, len(SEGMENTS)),
        blocks=st.integers(1, BLOCKS),
        fails_in=st.none() | st.integers(0, 3),
    )
    def ask(self, segments: int, blocks: int, fails_in: int | None) -> None:
        keys = [
            key(segment, block)
            for segment in range(segments)
            for block in range(blocks if segment == segments - 1 else SEGMENT)
        ]
        may_ask = [self.remote.reach.may_ask(bucket) for bucket in range(BUCKETS)]
        asked = len(self.redis.asked)
        self.redis.fails_in = fails_in
        reachable = {
            segment: fails_in is None
            and may_ask[self.bucket(segment)]
            and self.names.bucket(self.bucket(segment)) not in self.redis.unreachable
            for segment in range(segments)
        }
        self.runner.run(self.remote.refresh([pack_words(keys)], 1.0))
        self.redis.fails_in = None
        self.remote.expire(self.now)
        names = {self.names.bucket(bucket) for bucket in range(BUCKETS) if may_ask[bucket]}
        assert {one.words[1] for one in self.redis.asked[asked:]} <= names
        found, doubt = self.remote.match(prompt_of(keys))
        held = {keys[at] for _, start, stop in found for at in range(start, stop)}
        for segment in range(segments):
            of = {one for one in keys if one // 1000 == segment + 1}
            truth = {key(segment, block) for block in self.truth[segment]} & of
            if reachable[segment]:
                assert held & of == truth
        trust = self.trust = self.rank.in_answer(doubt)
        if trust.level is Level.EXACT:
            truth = {key(segment, block) for segment in SEGMENTS for block in self.truth[segment]}
            assert held == truth & set(keys)
        elif LATE not in trust.reason:
            assert not all(reachable.values())
            assert "it is away" in trust.reason
        is_late = self.now - self.confirmed_at > PROMISED_SECONDS
        assert is_late is (self.rank.recorded.reason == LATE)
        assert not is_late or trust.level is not Level.EXACT

    @rule(segments=st.integers(1, len(SEGMENTS)))
    def ask_again(self, segments: int) -> None:
        """Read nothing again that has just been read."""
        keys = [key(segment, block) for segment in range(segments) for block in range(SEGMENT)]
        self.runner.run(self.remote.refresh([pack_words(keys)], 1.0))
        if self.redis.unreachable or self.remote.reach.open_buckets:
            return
        asked = len(self.redis.asked)
        self.runner.run(self.remote.refresh([pack_words(keys)], 1.0))
        assert len(self.redis.asked) == asked

    @rule()
    def begin_anew(self) -> None:
        """Empty the cache: from the next poll on nothing counts that was held there."""
        life = self.remote.places.life("p", 0)
        before = self.pod.places
        self.runner.run(self.pod.empty())
        self.is_told = True
        self.poll()
        assert self.pod.places == [*(None for _ in before), GPU]
        assert self.remote.places.life("p", 0) == life + 1
        for segment in SEGMENTS:
            self.truth[segment] = set()
        # What lies there still is of places that are no more.

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "remote"):
            check_remote(self.remote)

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            self.runner.run(self.remote.close())
            self.runner.close()


@pytest.fixture
def machine() -> Iterator[RemoteMachine]:
    machine = RemoteMachine()
    machine.begin()
    yield machine
    machine.teardown()


def test_what_was_read_before_a_new_claim_says_nothing_of_its_blocks(
    machine: RemoteMachine,
) -> None:
    machine.change(segment=0, held={0, 1, 2}, spilled=False)
    machine.claim_anew()
    # Nothing was read since, though it was a moment ago.
    found, doubt = machine.remote.match(prompt_of([key(0, 0)]))
    assert found == []
    assert machine.rank.in_answer(doubt).level is Level.DEGRADED
    machine.ask(segments=1, blocks=3, fails_in=None)
    assert machine.trust.level is Level.EXACT


def test_what_was_read_before_a_late_confirmation_is_as_old_as_the_one_before(
    machine: RemoteMachine,
) -> None:
    machine.change(segment=0, held={0, 1, 2}, spilled=False)
    confirmed_at = machine.confirmed_at
    machine.now = confirmed_at + PROMISED_SECONDS - 0.1
    machine.poll()
    machine.ask(segments=1, blocks=3, fails_in=None)
    assert machine.trust.level is Level.EXACT
    machine.now += 0.2
    machine.confirm()
    # The copy is fresh, and the record is late no more.
    assert machine.rank.trust.level is Level.EXACT
    _, doubt = machine.remote.match(prompt_of([key(0, 0)]))
    assert machine.rank.in_answer(doubt).level is Level.DEGRADED
    machine.ask(segments=1, blocks=3, fails_in=None)
    assert machine.trust.level is Level.EXACT


def test_an_answer_without_redis_names_redis_and_not_the_publisher(machine: RemoteMachine) -> None:
    machine.change(segment=0, held={0, 1, 2}, spilled=False)
    machine.ask(segments=1, blocks=3, fails_in=None)
    machine.now += 10
    machine.redis.disruptions += 1
    machine.redis.unreachable.add(machine.names.bucket(machine.bucket(0)))
    machine.runner.run(machine.remote.refresh([pack_words([key(0, 0)])], 1.0))
    _, doubt = machine.remote.match(prompt_of([key(0, 0)]))
    assert machine.rank.in_answer(doubt).reason.startswith("the shared index: it is away")


def test_the_last_poll_is_the_last_one_that_redis_answered_for_every_pod(
    machine: RemoteMachine,
) -> None:
    answered = machine.remote.polled_at
    assert answered == machine.now
    machine.redis.unreachable.add(machine.names.record("p"))
    machine.now += 60
    machine.poll()
    assert machine.remote.polled_at == answered
    machine.redis.unreachable.clear()
    machine.poll()
    assert machine.remote.polled_at == machine.now


RemoteMachine.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=30)
TestRemote = RemoteMachine.TestCase
