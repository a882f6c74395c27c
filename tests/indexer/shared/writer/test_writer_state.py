"""Writers as machines against a model of Redis and a real server: whatever is lost, late or twice.

Two writers of one pod follow the same two engines. Their calls are answered, or not answered and carried
out or not, or carried out again at any time later; buckets and records are lost or fall back to what they
were. Where the record is sound and nothing was lost that an audit has yet to find, the buckets hold what
the engines did; and when faults end, they hold what they do.
One file, since the later tests run the state machine with chosen faults.
"""

import copy
from collections import deque
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.examples import examples
from tests.indexer.consistent import check
from tests.indexer.engine_model import EngineModel
from tests.indexer.shared.asked_server import AskedServer
from tests.indexer.shared.inside import check_writer
from tests.indexer.shared.publisher_model import Driven, FollowedPod, new_writer
from tests.indexer.shared.redis_model import BucketModel, RedisModel, read_bucket
from tests.servers.redis_server import RedisServer
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.keys import segment
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.layout.record import Claim, fields_of
from warmpath.indexer.shared.redis.command import Call, Command, Reply, UnreachableError
from warmpath.indexer.shared.writer import tenure
from warmpath.indexer.shared.writer.lease import Cause, Rest
from warmpath.indexer.shared.writer.machine import Writer, WriterState
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2 as pb

RANKS = 2
LEASE = 500.0
"""So long that the real server lets nothing expire by itself: the model says when."""
TOKENS = st.lists(st.integers(0, 2), min_size=2, max_size=8).map(tuple)
EXAMPLES = examples(100)
LATE = {"apply", "claim", "fence", "keep", "log", "publish", "renew"}
LOST = UnreachableError("no answer")

Truth = dict[tuple[int, Tier], set[int]]


def check_same(real: AskedServer, model: RedisModel, pods: str) -> None:
    """Compare everything that is there; not the times in the hash `pods`."""
    client = real.client
    assert {key.decode() for key in real.do(Command(("KEYS", "*")))} == model.keys.keys()
    for key, value in model.keys.items():
        if isinstance(value, BucketModel):
            checkpoints, blocks = read_bucket(fields_of(client.hgetall(key)))
            assert checkpoints == {n: b"%d:%d" % c for n, c in value.checkpoints.items()}
            assert blocks == value.all_blocks
        elif isinstance(value, list):
            entries = [
                (int(name.partition(b"-")[0]), int(first), deltas)
                for name, [_, first, _, deltas] in client.xrange(key)
            ]
            assert entries == value
        elif isinstance(value, str):
            assert client.get(key) == value.encode()
        elif key != pods:
            assert {n.decode(): v for n, v in fields_of(client.hgetall(key)).items()} == {
                n: v if isinstance(v, bytes) else str(v).encode() for n, v in value.items()
            }


class Writing(RuleBasedStateMachine):
    """Two writers, one pod, one Redis."""

    server: RedisServer
    mirrored = False
    loses = True

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.names = KeyNames("w", buckets=3)
        self.model = RedisModel(lambda: self.now)
        self.mirror = AskedServer(self.server) if self.mirrored else None
        if self.mirror is not None:
            self.mirror.client.flushall()
            self.mirror.clock = lambda: self.now
        engines = [EngineModel() for _ in range(RANKS)]
        self.pod = FollowedPod("p/1", engines, lambda: self.now)
        self.bases: list[int] = []
        self.tainted: set[int] = set()
        """Claims under which something was lost that only an audit can find."""
        self.late: list[Call] = []
        self.kept: dict[str, list[tuple[Any, bytes | None]]] = {}
        self.started = 0
        self.writers = [self.new_writer()]

    def new_writer(self) -> Driven:
        self.started += 1

        def base() -> int:
            self.bases.append(len(self.bases) + 1)
            return self.bases[-1]

        writer = new_writer(
            self.names, self.pod.cache, lambda: self.now,
            owner=f"writer {self.started}", lease=LEASE, bucket_life=10 * LEASE, random_base=base,
        )  # fmt: skip
        return Driven(writer, lambda: self.now)

    @initialize(begun=st.booleans())
    def begin(self, begun: bool) -> None:
        while begun and self.writers[0].writer.state is not WriterState.CURRENT:
            self.advance_writer(0, ["done"])

    # What engines do.

    @rule(rank=st.integers(0, RANKS - 1), prompts=st.lists(TOKENS, min_size=1, max_size=3))
    def serve(self, rank: int, prompts: list[tuple[int, ...]]) -> None:
        for tokens in prompts:
            self.store(rank, tokens)
            self.pod.cache.collect()

    @rule(rank=st.integers(0, RANKS - 1), tokens=TOKENS)
    def store(self, rank: int, tokens: tuple[int, ...]) -> None:
        self.pod.heard(rank, self.pod.engines[rank].store(tokens))

    @rule(rank=st.integers(0, RANKS - 1), which=st.integers(0, 30))
    def evict(self, rank: int, which: int) -> None:
        self.pod.heard(rank, self.pod.engines[rank].evict(which))

    @rule(rank=st.integers(0, RANKS - 1), which=st.integers(0, 30))
    def offload(self, rank: int, which: int) -> None:
        self.pod.heard(rank, self.pod.engines[rank].offload(which))

    @rule(rank=st.integers(0, RANKS - 1))
    def clear(self, rank: int) -> None:
        self.pod.heard(rank, self.pod.engines[rank].clear())

    @rule()
    def collect(self) -> None:
        self.pod.cache.collect()

    # What happens to calls.

    def carry_out(self, asked: Command | Call) -> Reply:
        self.expire()
        reply = self.model.run(asked)
        is_timed = isinstance(asked, Command) and asked.words[0] == "PTTL"
        if self.mirror is not None and not is_timed:
            assert self.mirror.do(asked) == reply, asked
        return reply

    def expire(self) -> None:
        """Drop expired data here and on the real server."""
        gone = self.model.expire()
        if gone and self.mirror is not None:
            self.mirror.client.delete(*gone)

    def advance_writer(self, which: int, fates: list[str]) -> None:
        driven = self.writers[which % len(self.writers)]
        if not driven.is_due:
            return
        replies: list[Reply] = []
        for number, asked in enumerate(driven.asked):
            fate = fates[number % len(fates)]
            reply = LOST if fate in {"not done", "late"} else self.carry_out(asked)
            if fate in {"late", "twice"} and isinstance(asked, Call) and asked.script.name in LATE:
                self.late.append(asked)
            replies.append(LOST if fate == "done, not said" else reply)
        driven.go_on(replies)

    @rule(which=st.integers(0, 5), times=st.integers(1, 20))
    def go_on(self, which: int, times: int) -> None:
        for _ in range(times):
            self.advance_writer(which, ["done"])

    @rule(
        which=st.integers(0, 5),
        fates=st.lists(
            st.sampled_from(["done", "done, not said", "not done", "late", "twice"]),
            min_size=1,
            max_size=4,
        ),
    )
    def go_on_with_trouble(self, which: int, fates: list[str]) -> None:
        self.advance_writer(which, fates)

    @rule(which=st.integers(0, 5), times=st.integers(1, 20))
    def go_on_while_calls_are_repeated(self, which: int, times: int) -> None:
        for _ in range(times):
            self.advance_writer(which, ["twice"])

    @precondition(lambda self: self.late)
    @rule(which=st.lists(st.integers(0, 100), min_size=1, max_size=6))
    def arrive_late(self, which: list[int]) -> None:
        for one in which[: len(self.late)]:
            self.carry_out(self.late.pop(one % len(self.late)))
            self.what_is_called_sound_is_what_the_engines_held()

    @rule(seconds=st.sampled_from([0.1, 0.05 * LEASE, 0.1 * LEASE, 0.3 * LEASE, 1.1 * LEASE]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.expire()

    @rule(full=st.booleans())
    def reach_the_limit(self, full: bool) -> None:
        if self.mirror is None:
            self.model.full = full

    @precondition(lambda self: len(self.writers) < 3)
    @rule()
    def start_another(self) -> None:
        self.writers.append(self.new_writer())

    @precondition(lambda self: len(self.writers) > 1)
    @rule(which=st.integers(0, 5), in_order=st.booleans())
    def stop_one(self, which: int, in_order: bool) -> None:
        driven = self.writers.pop(which % len(self.writers))
        if in_order:
            for asked in driven.writer.farewell():
                self.carry_out(asked)

    # What is lost.

    @property
    def losable(self) -> list[str]:
        buckets = [self.names.bucket(number) for number in range(self.names.buckets)]
        pod = self.pod.cache.pod
        return [
            *buckets,
            self.names.record(pod),
            self.names.fence(pod),
            self.names.log(pod),
            self.names.pods,
            self.names.schema,
        ]

    @rule(which=st.integers(0, 7))
    def keep_a_copy(self, which: int) -> None:
        key = self.losable[which % len(self.losable)]
        dump = self.mirror.client.dump(key) if self.mirror else None
        self.kept.setdefault(key, []).append((copy.deepcopy(self.model.keys.get(key)), dump))

    @precondition(lambda self: self.loses)
    @rule(which=st.integers(0, 7), older=st.integers(0, 3))
    def lose(self, which: int, older: int) -> None:
        """Lose a node: a key is as it was at some time, or is not there."""
        self.expire()
        key = self.losable[which % len(self.losable)]
        copies = self.kept.get(key, [])
        value, dump = copies[-older] if 0 < older <= len(copies) else (None, None)
        self.tainted.update(self.bases)
        self.model.drop(key)
        if value is not None:
            self.model.keys[key] = copy.deepcopy(value)
            self.model.expiry[key] = self.now + LEASE
        if self.mirror is not None:
            self.mirror.client.delete(key)
            if dump is not None:
                self.mirror.client.restore(key, round(1000 * LEASE), dump)

    # What has to hold.

    @property
    def said(self) -> dict[str, Any]:
        return dict(self.model.keys.get(self.names.record(self.pod.cache.pod), {}))

    def content(self, claim: Claim) -> Truth:
        """Return what readers find under a claim's places."""
        found: Truth = {}
        for spot, key in self.model.found(self.names, claim):
            found.setdefault((spot.rank, spot.tier), set()).add(key)
        return found

    def truth(self, sequence: int) -> Truth:
        """Return what the engines' followers held at a sequence of the journal."""
        return {
            (rank, tier): keys
            for rank, held in enumerate(self.pod.truths[sequence])
            for (tier, _), keys in held.items()
        }

    @invariant()
    def what_is_called_sound_is_what_the_engines_held(self) -> None:
        check(self.pod.cache)
        for driven in self.writers:
            check_writer(driven.writer)
        said = self.said
        if "sound" not in said or "claim" not in said:
            return
        claim = msgspec.json.decode(said["claim"], type=Claim)
        if claim.base in self.tainted:
            return
        applied = int(said["applied"])
        truths = [self.truth(sequence) for sequence in self.pod.truths if sequence >= applied]
        found = self.content(claim)
        for place in {place for truth in [*truths, found] for place in truth}:
            each = [truth.get(place, set()) for truth in truths]
            # A batch may be on its way: what it changes may be there or not.
            assert set.intersection(*each) <= found.get(place, set()) <= set.union(*each)
        for driven in self.writers:
            writer, step = driven.writer, driven.step
            if str(writer.token) == said["token"] and isinstance(step, Rest) and step.until_news:
                # Between two batches it is exactly what it says it is.
                assert found == self.truth(writer.applied)
                assert writer.applied == applied

    @invariant()
    def the_log_leads_to_what_is_applied(self) -> None:
        said = self.said
        entries = self.model.keys.get(self.names.log(self.pod.cache.pod), [])
        if self.tainted or not entries or "building" in said or not said:
            return
        assert entries[-1][0] == int(said["applied"])
        for (last, _, _), (_, first, _) in pairwise(entries):
            assert first == last + 1
        for last, first, deltas in entries:
            told = [delta.sequence for delta in pb.Deltas.FromString(deltas).deltas]
            assert told == [*range(first, last + 1)]

    @rule()
    def faults_end(self) -> None:
        """Then one writer has the pod, and Redis has what the engines hold."""
        self.late.clear()
        self.model.full = False
        self.pod.cache.collect()
        quiet = deque[bool](maxlen=60)
        for _ in range(3000):
            due = [driven for driven in self.writers if driven.is_due]
            for driven in due:
                self.advance_writer(self.writers.index(driven), ["done"])
            if not due:
                self.now += LEASE / 40
                self.expire()
            quiet.append(self.is_settled())
            if len(quiet) == quiet.maxlen and all(quiet):
                break
        else:
            raise AssertionError([driven.writer.state for driven in self.writers])
        said = self.said
        claim = msgspec.json.decode(said["claim"], type=Claim)
        assert self.content(claim) == self.truth(self.pod.cache.journal.sequence)
        assert "sound" in said
        assert "building" not in said
        self.tainted.discard(claim.base)
        if self.mirror is not None:
            check_same(self.mirror, self.model, self.names.pods)

    def is_settled(self) -> bool:
        states = sorted(driven.writer.state for driven in self.writers)
        others = [WriterState.WAITING] * (len(states) - 1)
        return states == [WriterState.CURRENT, *others] and int(self.said.get("audits", 0)) > 1

    def teardown(self) -> None:
        self.faults_end()
        if self.mirror is not None:
            self.mirror.client.close()


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that a small cache reaches."""
    monkeypatch.setattr(segment, "SEGMENT", 2)
    monkeypatch.setattr("warmpath.indexer.shared.writer.changes.PORTION_KEYS", 3)
    monkeypatch.setattr(tenure, "BATCH_DELTAS", 3)
    monkeypatch.setattr(tenure, "MOST_PLACES", 6)


@pytest.mark.random
@pytest.mark.usefixtures("_small")
def test_whatever_is_lost_the_index_is_what_the_engines_hold_or_says_that_it_may_not_be() -> None:
    run_state_machine_as_test(
        Writing, settings=settings(max_examples=EXAMPLES, stateful_step_count=50, deadline=None)
    )


@pytest.mark.random
@pytest.mark.usefixtures("_small")
def test_where_redis_loses_nothing_what_is_sound_is_always_true_whatever_comes_late_or_twice() -> (
    None
):
    class Lossless(Writing):
        loses = False

    run_state_machine_as_test(
        Lossless, settings=settings(max_examples=EXAMPLES, stateful_step_count=60, deadline=None)
    )


@pytest.mark.random
@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("kind", ["redis_server", "valkey_server"])
def test_a_real_server_says_and_holds_what_the_model_does(
    kind: str, request: pytest.FixtureRequest
) -> None:
    class Mirrored(Writing):
        server = request.getfixturevalue(kind)
        mirrored = True

    run_state_machine_as_test(
        Mirrored,
        settings=settings(max_examples=examples(25), stateful_step_count=40, deadline=None),
    )


class Alone(Writing):
    """One writer of one pod, driven by hand."""

    def settle(self) -> Writer:
        self.faults_end()
        return self.writers[0].writer


def test_a_batch_into_a_bucket_that_was_lost_is_not_logged() -> None:
    alone = Alone()
    alone.store(0, (1, 2, 1, 2))
    writer = alone.settle()
    for number in range(alone.names.buckets):
        alone.model.drop(alone.names.bucket(number))
    applied, audits = writer.applied, writer.counts.audits
    alone.store(0, (2, 1, 2, 1))
    alone.pod.cache.collect()
    for _ in range(10):
        if not writer.counts.rebuilds[Cause.LOST]:
            alone.go_on(0, 1)
    assert writer.counts.rebuilds[Cause.LOST] == 1
    assert (writer.applied, writer.counts.audits) == (applied, audits)
    alone.settle()


def test_a_writer_that_is_stuck_keeps_its_lease_and_is_unsound() -> None:
    alone = Alone()
    alone.store(0, (1, 2, 1, 2))
    writer = alone.settle()
    alone.model.full = True
    alone.store(0, (2, 1, 2, 1))
    alone.pod.cache.collect()
    for _ in range(50):
        alone.advance_writer(0, ["done"])
        alone.wait(LEASE / 10)
    assert "sound" not in alone.said
    assert writer.trouble.startswith("OOM")
    assert writer.counts.retries
    alone.settle()
    assert writer.counts.rebuilds == {Cause.START: 1}


def test_attempts_follow_each_other_more_and_more_slowly() -> None:
    alone = Alone()
    pauses = []
    for _ in range(40):
        driven = alone.writers[0]
        if isinstance(driven.step, Rest):
            pauses.append(driven.step.seconds)
            alone.now += driven.step.seconds
        alone.advance_writer(0, ["not done"])
    assert pauses[:7] == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    assert set(pauses[6:]) == {2.0}


def test_what_was_swept_because_the_pod_was_forgotten_is_written_anew() -> None:
    alone = Alone()
    alone.store(0, (1, 2, 1, 2))
    writer = alone.settle()
    alone.model.drop(alone.names.pods)
    alone.settle()
    assert writer.counts.rebuilds[Cause.FORGOTTEN] == 1


def test_a_claim_with_a_token_that_buckets_have_already_is_made_anew() -> None:
    alone = Alone()
    alone.store(0, (1, 2, 1, 2))
    first = alone.settle()
    # The record and the fence are lost, so that the next claim gets the same number.
    alone.model.drop(alone.names.record("p/1"))
    alone.model.drop(alone.names.fence("p/1"))
    alone.start_another()
    second = alone.writers[1].writer
    while second.state is not WriterState.CURRENT:
        alone.go_on(1, 1)
        alone.now += 0.01
    assert second.counts.rebuilds[Cause.FENCED] == 1
    assert second.token > first.token
    alone.settle()


@pytest.mark.usefixtures("_small")
def test_calls_that_come_again_late_change_nothing(redis_server: RedisServer) -> None:
    class Repeated(Writing):
        server = redis_server
        mirrored = True

    one = Repeated()
    writer = one.writers[0].writer
    for round_number in range(6):
        one.serve(round_number % RANKS, [(1, 2, round_number % 3, 1), (2, 2), (0, 1, 2, 0)])
        if round_number == 3:
            one.clear(0)
            one.pod.cache.collect()
        one.evict(0, round_number)
        one.pod.cache.collect()
        for _ in range(60):
            one.go_on_while_calls_are_repeated(0, 1)
            one.now += 0.02
        assert writer.state is WriterState.CURRENT
        said = one.said
        repeated = [asked for asked in one.late if asked.script.name != "claim"]
        for asked in [*repeated, *reversed(repeated)]:
            one.carry_out(asked)
        assert one.said == said
        assert one.mirror is not None
        check_same(one.mirror, one.model, one.names.pods)
    assert {asked.script.name for asked in repeated} == LATE - {"claim", "keep"}
    one.faults_end()
    # Nothing of it was taken for a loss.
    assert writer.counts.rebuilds == {Cause.START: 1}
    one.mirror.client.close()
