"""What is called exact shows a moment of the last 3 s; and without faults nothing is doubted.

One file, since all parts test the one promise.
"""

import math
from random import Random

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
from tests.indexer.shared.timed_publisher import World
from warmpath.indexer.shared.redis.command import Call, Command, Reply, UnreachableError
from warmpath.indexer.shared.writer.lease import Cause
from warmpath.indexer.trust import PROMISED_SECONDS

LOST = UnreachableError("no answer")
TOKENS = st.lists(st.integers(0, 2), min_size=2, max_size=8).map(tuple)
CORRECTED = [1.1, 0.9]
"""How fast clocks go at most and at least while they are being corrected."""
RATES = st.sampled_from([1.0, 1.0001, 0.9999, *CORRECTED])


def is_renewal(first: Command | Call) -> bool:
    return isinstance(first, Call) and first.script.name == "renew"


class Promise(RuleBasedStateMachine):
    """A publisher that is stopped and whose calls are late, and a reader; nothing in Redis is lost."""

    @initialize(publisher_rate=RATES, reader_rate=RATES, begun=st.booleans())
    def begin(self, publisher_rate: float, reader_rate: float, begun: bool) -> None:
        self.world = World(publisher_rate, reader_rate)
        self.promised = PROMISED_SECONDS / min(publisher_rate, reader_rate, 1.0) + 1e-6
        """The promise holds by the clocks of those who give it."""
        self.replies: list[Reply] | None = None
        """What Redis has replied to the writer's commands; None: they are on their way."""
        self.late: list[Command | Call] = []
        if begun:
            self.live(80)
            assert self.world.is_believed

    # What engines do

    @rule(tokens=TOKENS)
    def store(self, tokens: tuple[int, ...]) -> None:
        self.world.publish(self.world.engine.store(tokens))

    @rule(which=st.integers(0, 30))
    def evict(self, which: int) -> None:
        self.world.publish(self.world.engine.evict(which))

    @rule()
    def clear(self) -> None:
        self.world.publish(self.world.engine.clear())

    # Time, and the publisher's processor time

    @rule(seconds=st.sampled_from([0.01, 0.1, 0.5, 1.0, 2.5, 4.0]))
    def wait(self, seconds: float) -> None:
        self.world.now += seconds

    @rule()
    def turn(self) -> None:
        self.world.turn()

    @rule(turns=st.integers(1, 30))
    def live(self, turns: int) -> None:
        """Let everybody go on without any fault."""
        if self.world.asked:
            self.answer(are_lost=False)
        for number in range(turns):
            self.world.now += 0.06
            self.world.turn()
            self.world.write()
            if number % 4 == 0:
                self.read(0.0, 0.0)
            self.what_is_believed_is_of_the_last_seconds()

    @rule(
        what=st.sampled_from(["store", "clear"]),
        seconds=st.floats(0.5, 8.0),
        follows=st.booleans(),
        polls=st.booleans(),
        calls=st.sampled_from(["not made", "held up", "lost"]),
        renewal=st.booleans(),
    )
    def stand_still(
        self, what: str, seconds: float, follows: bool, polls: bool, calls: str, renewal: bool
    ) -> None:
        """Let the engine change while the publisher stands still, or only its calls are held up."""
        world = self.world
        if calls != "not made":
            self.send(renewal=renewal)
        if what == "clear":
            self.clear()
        else:
            self.store((2, 2, 2, 2, 0, 1))
        ends = world.now + seconds
        while world.now < ends:
            world.now += 0.25
            if follows:
                world.turn()
            if polls:
                self.read(0.0, 0.0)
            self.what_is_believed_is_of_the_last_seconds()
        if world.asked and calls == "held up" and self.replies is None:
            self.arrive()
        if world.asked:
            self.answer(are_lost=calls == "lost")
        for _ in range(8):
            self.read(0.0, 0.0)
            self.what_is_believed_is_of_the_last_seconds()
            world.now += 0.25

    # The writer's calls

    def send(self, *, renewal: bool) -> None:
        """Let the writer go on until its next commands are on their way; or its next renewal."""
        world = self.world
        for _ in range(60):
            if not world.asked:
                world.now += 0.06
                world.turn()
                if world.is_due:
                    world.go_on([])
            elif renewal and not is_renewal(world.asked[0]):
                self.answer(are_lost=False)
            else:
                return

    @precondition(lambda self: self.world.is_due)
    @rule()
    def ask(self) -> None:
        """Let the writer go on to its next commands, which are on their way then."""
        if not self.world.asked:
            self.world.go_on([])

    @precondition(lambda self: self.world.asked and self.replies is None)
    @rule()
    def arrive(self) -> None:
        self.replies = [self.world.redis.run(one) for one in self.world.asked]

    @precondition(lambda self: self.world.asked)
    @rule(are_lost=st.booleans())
    def answer(self, are_lost: bool) -> None:
        """Give the writer the replies, or let it give up; what is on its way arrives late."""
        asked = list(self.world.asked)
        if are_lost:
            self.late += [] if self.replies else asked
            self.replies = [LOST] * len(asked)
        elif self.replies is None:
            self.arrive()
        assert self.replies is not None
        replies, self.replies = self.replies, None
        self.world.go_on(replies)

    @precondition(lambda self: self.late)
    @rule(which=st.integers(0, 30))
    def arrive_late(self, which: int) -> None:
        self.world.redis.run(self.late.pop(which % len(self.late)))

    @rule(seconds=st.sampled_from([-3600.0, 3600.0, -0.5, -1.0, 0.5, 4.0]))
    def set_the_clock_of_redis(self, seconds: float) -> None:
        self.world.redis.clock_ahead += seconds

    # The reader

    @rule(way=st.sampled_from([0.0, 0.1, 2.0]), back=st.sampled_from([0.0, 0.1, 2.0]))
    def read(self, way: float, back: float) -> None:
        asked_at = self.world.reader_clock()
        self.world.now += way
        reply = self.world.record()
        self.world.now += back
        self.world.read(reply, asked_at)

    @rule()
    def read_in_vain(self) -> None:
        self.world.read(LOST, self.world.reader_clock())

    @invariant()
    def what_is_believed_is_of_the_last_seconds(self) -> None:
        if self.world.is_believed:
            assert self.world.is_of_the_last(self.promised, self.world.found)

    def teardown(self) -> None:
        """Without faults all is believed soon, and is what the engine holds."""
        if not hasattr(self, "world"):
            return
        for _ in range(20):
            self.live(50)
            if self.world.is_believed:
                break
        assert self.world.is_believed, self.world.registry.trust_of("p", 0)
        assert self.world.found == self.world.truth.held


@pytest.mark.random
def test_what_a_reader_believes_is_of_the_last_seconds_whatever_is_late() -> None:
    run_state_machine_as_test(
        Promise,
        settings=settings(max_examples=examples(300), stateful_step_count=60, deadline=None),
    )


def living() -> Promise:
    """Return a world in which everything is exact, and each block is only a moment old."""
    promise = Promise()
    promise.begin(1.0, 1.0, begun=True)
    return promise


@pytest.mark.parametrize("what", ["store", "clear"])
@pytest.mark.parametrize("calls", ["not made", "held up", "lost"])
@pytest.mark.parametrize("renewal", [False, True])
@pytest.mark.parametrize("follows", [False, True])
@pytest.mark.parametrize("polls", [False, True])
def test_what_a_reader_believes_is_of_the_last_seconds_whatever_stands_still(
    what: str, calls: str, *, renewal: bool, follows: bool, polls: bool
) -> None:
    promise = living()
    for _ in range(3):
        promise.stand_still(
            what=what, seconds=4.0, follows=follows, polls=polls, calls=calls, renewal=renewal
        )
        promise.store((0, 1, 2, 0))
        promise.live(100)
        assert promise.world.is_believed


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_a_publisher_that_was_stopped_does_not_confirm_what_it_has_not_read(turns: int) -> None:
    promise = living()
    world = promise.world
    world.now += 0.5
    promise.clear()
    world.now += PROMISED_SECONDS + 0.5
    for _ in range(turns):
        world.turn()
        world.now += 0.06
    promise.read(0.0, 0.0)
    world.write()
    promise.read(0.0, 0.0)
    promise.what_is_believed_is_of_the_last_seconds()
    promise.teardown()


@pytest.mark.parametrize("set_back", [0.5, 1.0, 1.5, 3600.0])
def test_a_confirmation_is_as_late_as_it_is_though_redis_clock_goes_back_on_its_way(
    set_back: float,
) -> None:
    promise = living()
    promise.send(renewal=True)
    promise.clear()
    promise.wait(0.7)
    promise.set_the_clock_of_redis(-set_back)
    promise.wait(1.0)
    promise.arrive()
    promise.answer(are_lost=False)
    for _ in range(20):
        promise.read(0.0, 0.0)
        promise.what_is_believed_is_of_the_last_seconds()
        promise.wait(0.2)
    promise.teardown()


MINUTES = examples(24 * 60, desk=6)
STARTS = 20.0
"""Seconds within which everything is exact after a start."""


class Day:
    """Time without faults: a publisher with a turn of 0.06 s in each `each` seconds, and a reader."""

    def __init__(self, each: float, *, cut_short: float = 0.0, rate: float = 1.0) -> None:
        self.world = World(publisher_rate=rate)
        self.rng = Random(0)
        self.each = each
        self.cut_short = cut_short
        """The share of turns that end while the publisher waits for Redis."""
        self.start = self.world.now
        self.poll_at = self.event_at = self.start
        self.polls = self.doubts = 0
        self.replies: list[Reply] | None = None
        """What Redis has replied while the publisher stood still."""

    def live(self, minutes: int = MINUTES) -> None:
        world, begins = self.world, self.start
        while begins < self.start + 60 * minutes:
            begins += self.each
            for at in (begins, begins + 0.06):
                while self.poll_at < at:
                    self.poll()
                world.now = at
                if at > self.event_at:
                    self.serve()
                if self.replies is None or at == begins:
                    world.turn()
                    self.write()

    def write(self) -> None:
        """Let the writer do what is due, or end when it has asked for something and not read the replies."""
        world = self.world
        steps = self.rng.randrange(4) if self.rng.random() < self.cut_short else math.inf
        replies, self.replies = self.replies, None
        while replies is not None or world.is_due:
            if replies is None:
                replies = [world.redis.run(one) for one in world.asked]
                if replies and steps <= 0:
                    self.replies = replies
                    return
            world.go_on(replies)
            replies = None
            steps -= 1

    def poll(self) -> None:
        """Let the reader poll, a little late as on a busy machine."""
        world = self.world
        world.now = self.poll_at
        reply, asked_at = world.record(), world.reader_clock()
        world.now += self.rng.random() * 0.02
        world.read(reply, asked_at)
        if world.now > self.start + STARTS:
            self.polls += 1
            self.doubts += not world.is_believed
        self.poll_at = world.now + 0.25 + self.rng.random() * 0.1

    def serve(self) -> None:
        self.world.publish(self.world.engine.store(tuple(self.rng.choices(range(3), k=4))))
        self.event_at += self.rng.random() * 5


@pytest.mark.parametrize("each", [0.25, 1.0])
def test_a_day_without_faults_is_exact_all_the_time_also_at_a_tenth_of_a_core(each: float) -> None:
    day = Day(each)
    day.live()
    assert day.polls > MINUTES * 60 * 3
    assert day.doubts == 0
    assert day.world.writer.counts.rebuilds == {Cause.START: 1}


@pytest.mark.parametrize("rate", CORRECTED)
@pytest.mark.parametrize("each", [0.06, 1.0])
def test_a_publisher_whose_clock_is_being_corrected_is_exact_all_the_time(
    rate: float, each: float
) -> None:
    day = Day(each, rate=rate)
    day.live(minutes=5)
    assert day.polls > 5 * 60 * 2
    assert day.doubts == 0


def test_a_publisher_at_a_tenth_of_a_core_that_waits_for_redis_is_hardly_ever_doubted() -> None:
    """One turn in 50 ends just before the publisher reads what Redis has replied."""
    day = Day(1.0, cut_short=0.02)
    day.live()
    assert day.doubts <= 0.01 * day.polls
    assert day.world.writer.counts.rebuilds == {Cause.START: 1}


class Far(Day):
    """Time without faults beside a Redis that is so many seconds of round trip away, and a busy engine."""

    def __init__(self, trip: float) -> None:
        super().__init__(0.06)
        # Seconds of changes wait for their write.
        self.world.follower.cache.journal._max_bytes = 1 << 20
        self.trip = trip
        self.sent_at = 0.0

    def write(self) -> None:
        """Let the writer's commands arrive after half of the time, and their replies after all of it."""
        world = self.world
        if not world.asked:
            if world.is_due:
                world.go_on([])
            self.sent_at = world.now
        elif self.replies is None and world.now >= self.sent_at + self.trip / 2:
            self.replies = [world.redis.run(one) for one in world.asked]
        elif self.replies is not None and world.now >= self.sent_at + self.trip:
            replies, self.replies = self.replies, None
            world.go_on(replies)
            self.sent_at = world.now

    def serve(self) -> None:
        super().serve()
        self.event_at = self.world.now + 0.1


@pytest.mark.parametrize("trip", [0.1, 0.4])
def test_a_day_beside_a_distant_redis_is_exact_all_the_time(trip: float) -> None:
    day = Far(trip)
    day.live(2)
    assert day.polls > 200
    assert day.doubts <= 0.01 * day.polls


@pytest.mark.parametrize("late", [0.06 * steps for steps in range(1, 12)])
def test_a_rank_that_was_too_far_behind_is_as_old_as_its_lag_when_it_is_exact_again(
    late: float,
) -> None:
    world = World()
    follower = world.follower
    stored = 0

    def live(seconds: float, lag: float) -> None:
        """Let the engine change and the publisher apply what is older than the lag."""
        nonlocal stored
        until = world.now + seconds
        while world.now < until:
            world.now += 0.06
            stored += 1
            if not stored % 5:
                world.publish(world.engine.store((stored % 3, stored // 3 % 3, stored % 2)))
            while world.sent and world.sent[0][0] <= world.now - lag - 0.12:
                follower.heard(world.sent.popleft()[1])
            follower.rank.lag._be(lag)
            follower.rank._limit_lag()
            follower.cache.collect()
            follower.cache.pulse.beat(world.publisher_clock())
            world.write()
            world.read(world.record(), world.reader_clock())

    live(6, 0)
    assert world.is_believed
    live(4, 2.5)
    assert not world.is_believed
    live(late, 0.95)
    assert world.is_believed
    unheard = world.sent[0][0]
    while world.is_believed:
        world.now += 0.05
        world.read(world.record(), world.reader_clock())
    assert world.now - unheard <= PROMISED_SECONDS + 0.05
