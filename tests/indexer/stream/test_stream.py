"""The stream machine: order, gaps, replays, restarts, and what they do to trust."""

from collections.abc import Callable
from functools import partial
from operator import methodcaller
from typing import Any

import pytest

from tests.indexer.consistent import check
from warmpath.indexer.stream.machine import CHECKS, Stream, StreamState
from warmpath.indexer.stream.replay import (
    FIRST_PATIENCE,
    KEPT,
    LONGEST_BACK_OFF,
    PATIENCE,
    AskReplay,
)
from warmpath.indexer.trust import Level, Trust

COLD, DEGRADED, EXACT = Level.COLD, Level.DEGRADED, Level.EXACT


def payload(sequence: int, life: int = 0) -> bytes:
    return f"{life}:{sequence}".encode()


class Driven:
    """A stream, its follower, and a publisher that answers its replays when the test says so."""

    def __init__(self, *, has_replay: bool = True, pending_bytes: int = 1 << 20) -> None:
        self.applied: list[bytes] = []
        self.resets = 0
        self.doubts = 0
        self.asked: AskReplay | None = None
        self.ask = self._ask
        self.stream = Stream(
            self, has_replay=has_replay, pending_bytes=pending_bytes, clock=lambda: 0.0
        )

    def _ask(self, asked: AskReplay) -> None:
        self.asked = asked

    def believe(self, said: Trust) -> None:
        assert (said.level, said.reason) == (self.stream.trust.level, self.stream.trust.reason)

    def apply(self, sequence: int, payload: bytes) -> None:
        assert self.stream.sequence == sequence
        self.applied.append(payload)

    def begin_life(self) -> None:
        self.applied.clear()
        self.resets += 1

    def doubt(self) -> None:
        self.doubts += 1

    def tell(self, what: str, *about: object) -> None:
        getattr(self.stream, what)(*about)
        check(self.stream)

    def connect(self) -> None:
        self.tell("connected")

    def live(self, *sequences: int, life: int = 0) -> None:
        for sequence in sequences:
            self.tell("live", sequence, payload(sequence, life))

    def answer(self, *sequences: int, life: int = 0, end: bool = True) -> None:
        asked = self.asked
        assert asked is not None
        for sequence in sequences:
            self.tell("replayed", asked.ticket, sequence, payload(sequence, life))
        if end:
            self.tell("replay_ended", asked.ticket)

    def fail(self, reason: str = "no answer") -> None:
        """Let the replay break off."""
        asked = self.asked
        assert asked is not None
        self.tell("replay_failed", asked.ticket, reason)

    def level(self) -> Level:
        return self.stream.trust.level

    def asks(self, start: int) -> None:
        assert self.asked is not None
        assert self.asked.start == start
        assert self.stream.state is StreamState.REPLAYING

    def says(self, reason: str) -> None:
        assert reason in self.stream.trust.reason

    def doubted(self) -> None:
        assert self.doubts

    def counts(self, **expected: int) -> None:
        for name, count in expected.items():
            assert getattr(self if hasattr(self, name) else self.stream.counts, name) == count

    def expect(self, *sequences: int, life: int = 0) -> None:
        assert self.applied == [payload(sequence, life) for sequence in sequences]


def connected(**options: Any) -> Driven:
    driven = Driven(**options)
    driven.connect()
    return driven


def following(count: int = 3, **options: bool) -> Driven:
    driven = connected(**options)
    if driven.asked:
        driven.answer()
    driven.live(*range(count))
    driven.asked = None
    assert driven.level() is Level.EXACT
    return driven


def broken_off(reason: str = "no answer") -> Driven:
    """Return one that waits with batch 7 and whose replay broke off behind batch 3."""
    driven = following()
    driven.live(7)
    driven.answer(2, 3, end=False)
    driven.fail(reason)
    return driven


def reconnected(**options: bool) -> Driven:
    """Return one that lost its connection after batch 2, and has it again."""
    driven = following(**options)
    driven.stream.disconnected()
    driven.connect()
    return driven


def act(name: str) -> Callable[..., methodcaller]:
    """Return what makes a step of a story: a method of `Driven` with its arguments."""
    return partial(methodcaller, name)


live, answer, fail, connect = map(act, ("live", "answer", "fail", "connect"))
tell, asks, says, counts = map(act, ("tell", "asks", "says", "counts"))
doubted, expect = map(act, ("doubted", "expect"))
silent = partial(connected, has_replay=False)
followed_silently = partial(following, has_replay=False)
ALL = range(3 * KEPT)
stray = partial(tell, "stray", "a message is no frame")
LACKS = tell("lacks", "a store cannot be read")
CLOSED = (answer(2, 3, 4), expect(*range(5)))

STORIES: dict[str, list[Any]] = {
    "a new stream is cold and asks for everything": [Driven, COLD, connect(), asks(0), COLD],
    "an engine that has published nothing is exact": [connected, answer(), expect(), EXACT],
    "answers that are no batches end no check and restart nothing": [connected, answer(0), *[stray(), answer(), counts(resets=0), DEGRADED] * 5, answer(0, 1), expect(0, 1), EXACT],
    "live batches are held until the replay is over": [connected, live(2, 3), expect(), answer(0, 1, 2, end=False), expect(0, 1, 2), COLD, answer(), expect(0, 1, 2, 3), EXACT, counts(duplicates=1)],
    "joining after the buffer has forgotten is degraded": [connected, answer(7, 8), live(9), expect(7, 8, 9), DEGRADED, says("begins at 7")],
    "joining late without replay is degraded": [silent, live(7), expect(7), DEGRADED],
    "joining at the first batch without replay is exact": [silent, live(0, 1), expect(0, 1), EXACT],
    "a duplicate is dropped": [following, live(2, 1), expect(0, 1, 2), EXACT, counts(duplicates=2)],
    "batches that a replay has overtaken by far are duplicates": [
        partial(following, 1), live(4 * KEPT), asks(0), answer(*range(9 * KEPT)), live(*range(4 * KEPT + 1, 9 * KEPT + 1)),
        counts(resets=0), EXACT, expect(*range(9 * KEPT + 1)),
    ],
    # Such batches may be those of a new life too.
    "batches that waited while the first replay ran are duplicates": [
        connected, answer(*ALL), live(*ALL[KEPT:], 3 * KEPT), DEGRADED, answer(ALL[-1]), counts(resets=0), EXACT, expect(*ALL, 3 * KEPT),
    ],
    "a restart behind a proxy after a long replay is found out by the next batch": [
        connected, answer(*ALL), EXACT, live(0, life=1), DEGRADED, answer(), counts(resets=1), answer(0, life=1), live(1, life=1), expect(0, 1, life=1), EXACT,
    ],
    "a sequence that goes back by far is a restart": [partial(following, 3 * KEPT), live(0, life=1), counts(resets=1), expect(0, life=1)],
    "a sequence that goes back by far without replay is a restart": [partial(followed_silently, 3 * KEPT), live(0, life=1), counts(resets=1), expect(0, life=1)],
    "a connection without replay whose sequence begins far before is a restart": [partial(followed_silently, 3 * KEPT), tell("disconnected"), connect(), live(5, life=1), counts(resets=1)],
    # The replay begins at the fence.
    "a gap is not exact until replay has closed it": [following, live(5), DEGRADED, asks(2), live(6), answer(2, 3, 4, 5), expect(*range(7)), EXACT],
    "a gap that replay cannot close is degraded and passed": [following, live(5), answer(2, 3, 5), live(6), expect(0, 1, 2, 3, 5, 6), DEGRADED, says("batches 4 to 4")],
    "a batch lost behind the replay is asked for once more": [following, live(5, 8), answer(2, 3, 4, 5), asks(5), DEGRADED, answer(5, 6, 7, 8), expect(*range(9)), EXACT],
    "a buffer that begins after the fence degrades": [following, live(9), answer(6, 7, 8, 9), expect(0, 1, 2, 6, 7, 8, 9), DEGRADED],
    # The last batch of it is the fence, and nothing that is shown was ever in doubt.
    "a replay that breaks off is resumed from where it stopped": [
        partial(broken_off, "no answer within 10 s"), DEGRADED, says("no answer within 10 s; it is requested again"), asks(3),
        live(8), answer(3, 4, 5, 6, 7, 8), expect(*range(9)), EXACT, counts(doubts=0),
    ],
    # What is shown after its second end is of before.
    "a first replay that breaks off is resumed": [connected, fail(), COLD, says("replay failed"), answer(0, 1, end=False), fail(), DEGRADED, answer(1, 2), expect(0, 1, 2), EXACT],
    "a replay is resumed until the publisher says that its buffer begins later": [broken_off, answer(6, 7), live(8), expect(0, 1, 2, 3, 6, 7, 8), DEGRADED, says("begins at 6"), doubted()],
    "a restart between a replay and what resumes it is caught at the fence": [broken_off, answer(3, 4, life=1), counts(resets=1), answer(*range(5), life=1), expect(*range(5), life=1), EXACT],
    "where replays only fail the stream goes on with what comes live": [
        following, live(5), *[asks(2), fail()] * PATIENCE, live(6), expect(0, 1, 2, 5, 6), DEGRADED, says("replay failed: no answer"), doubted(),
    ],
    "a replay endpoint that never answered is given up sooner": [connected, live(5), *[COLD, fail()] * FIRST_PATIENCE, expect(5), DEGRADED],
    "a replay that fails while nothing is missing yet is never given up": [reconnected, *[fail()] * 5 * PATIENCE, answer(2, 3), expect(0, 1, 2, 3), EXACT],
    "a message that is no batch costs trust until the next batch is in order": [following, stray(), DEGRADED, says("a message is no frame"), live(3), EXACT, counts(doubts=0), expect(0, 1, 2, 3)],
    "a message that is no batch costs it without replay too": [followed_silently, stray(), DEGRADED, says("a message is no frame"), live(3), EXACT, counts(doubts=0), expect(0, 1, 2, 3)],
    "a batch that came as a message that is none is missing": [following, stray(), live(4), DEGRADED, *CLOSED, EXACT],
    "a batch that came as a message that is none is missing for good without replay": [followed_silently, stray(), live(4, 5), DEGRADED, doubted()],
    # It may have been batch 5.
    "a message that is no batch during a replay leaves open whether one is missing": [following, live(4), stray(), *CLOSED, DEGRADED, live(5), EXACT],
    # It may have been batch 6.
    "a clear in a held batch does not make good a message behind it that is no batch": [following, live(4, 5), stray(), answer(2, 3, 4), tell("cleared", 5), DEGRADED, live(6), EXACT],
    "a turn-over in held batches does not make good a message behind them that is no batch": [following, LACKS, live(4, 5), stray(), answer(2, 3, 4), tell("turned_over"), DEGRADED],
    "a replay whose first message is no batch is no restart": [reconnected, stray(), answer(), counts(resets=0), answer(2), expect(0, 1, 2), EXACT],
    # A clear before it makes nothing good.
    "what lacks blocks is degraded and nothing of it in doubt": [following, LACKS, DEGRADED, counts(doubts=0), tell("cleared", 2), DEGRADED, live(3), tell("cleared", 3), EXACT],
    "what lacks blocks while a replay runs is not exact behind it": [connected, answer(0, 1, end=False), LACKS, answer(), DEGRADED],
    "a restart seen live begins a new life": [following, live(0, 1, life=1), expect(0, 1, life=1), counts(resets=1), EXACT],
    "a restart whose first batches were missed is replayed from the start": [partial(following, 10), live(2, life=1), COLD, answer(0, 1, 2, life=1), expect(0, 1, 2, life=1), EXACT],
    "a restart that looks like a gap is caught at the fence": [following, live(5, life=1), answer(2, 3, 4, 5, life=1), counts(resets=1), answer(*range(6), life=1), expect(*range(6), life=1), EXACT],
    # Not exact while it is not known what was missed.
    "a restart while disconnected is caught by the empty buffer": [reconnected, DEGRADED, answer(), counts(resets=1), answer(), EXACT, live(0, life=1), expect(0, life=1)],
    "a new life that is shorter than the last one is not exact before it is replayed": [
        partial(following, 10), tell("disconnected"), connect(), answer(), counts(resets=1), COLD, answer(*range(4), life=1), expect(*range(4), life=1), EXACT,
    ],
    "what was held while the replay of a new life came back empty is taken once": [
        reconnected, live(0, 1, life=1), answer(), counts(resets=1), answer(0, 1, life=1), expect(0, 1, life=1), counts(duplicates=0), EXACT,
    ],
    "a reconnection that missed nothing is exact again": [reconnected, answer(2), expect(0, 1, 2), counts(resets=0), EXACT],
    "a reconnection without replay is degraded until a clear": [partial(reconnected, has_replay=False), DEGRADED, live(3), tell("cleared", 3), EXACT],
    "a malformed batch degrades until a later clear": [following, tell("malformed", 2, "not msgpack"), DEGRADED, tell("cleared", 2), DEGRADED, live(3), tell("cleared", 3), EXACT],
    "a held batch that is malformed is named and healed by a clear behind it": [
        following, live(4, 5), answer(2, 3), tell("malformed", 4, "not msgpack"), says("batch 4 is malformed: not msgpack"), tell("cleared", 5), EXACT,
    ],
    "a clear before a loss does not make it good": [following, live(5), answer(2, 3, 5), tell("cleared", 3), DEGRADED, tell("cleared", 5), EXACT],
    "held batches past the bound are asked for again": [partial(connected, pending_bytes=6), live(1, 2, 3), counts(overflows=1), answer(0), asks(0), answer(0, 1, 2, 3), expect(0, 1, 2, 3), EXACT],
}  # fmt: skip
"""How a stream begins, then what happens to it, and what it applies, asks for and is trusted with then."""


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_streams(story: list[Any]) -> None:
    begun, *steps = story
    driven = begun()
    for step in steps:
        if isinstance(step, Level):
            assert driven.level() is step
        else:
            step(driven)


def test_a_batch_that_no_subscription_brought_is_asked_for_until_a_live_one_comes() -> None:
    driven = connected()
    driven.answer(0, 1)
    for delay in CHECKS:
        assert driven.asked
        assert (driven.asked.start, driven.asked.delay) == (1, delay), "with its fence"
        assert driven.level() is Level.EXACT
        driven.fail()
        assert (driven.asked.start, driven.asked.delay) == (1, delay), "once more"
        driven.answer(1)
    last = driven.asked
    assert not driven.stream.wants(last.ticket), "the subscription is in force by now"
    assert driven.stream.counts.duplicates == 0
    driven.connect()
    driven.answer(1)
    driven.answer(1, 2)
    driven.expect(0, 1, 2)
    assert driven.level() is Level.EXACT
    driven.answer(5)
    assert driven.level() is Level.DEGRADED, "the buffer does not go back to what was missed"


@pytest.mark.parametrize("answered", [(), (0,), (0, 1), (0, 1, 2), (0, 1, 2, 3)])
def test_a_new_life_that_answers_a_check_is_followed_from_its_first_batch(
    answered: tuple[int, ...],
) -> None:
    driven = connected()
    driven.answer(0, 1)
    driven.answer(*answered[1:], life=1)
    assert driven.resets == 1
    assert driven.level() is Level.COLD
    driven.answer(*answered, life=1)
    assert driven.applied == [payload(sequence, life=1) for sequence in answered]
    assert driven.level() is Level.EXACT


def test_a_live_batch_ends_the_checks_of_the_subscription() -> None:
    driven = connected()
    driven.answer(0)
    check = driven.asked
    assert check
    driven.live(1)
    assert not driven.stream.wants(check.ticket)
    driven.answer(1, 2)
    driven.expect(0, 1)


def test_a_replay_is_asked_again_later_each_time_it_brings_nothing() -> None:
    driven = following()
    driven.live(5)
    delays = []
    for _ in range(PATIENCE - 1):
        driven.fail()
        assert driven.asked
        delays.append(driven.asked.delay)
    assert delays == sorted(delays)
    assert delays[0] > 0
    assert delays[-1] == LONGEST_BACK_OFF
    driven.answer(2, 3, end=False)
    driven.fail()
    assert driven.asked.delay == delays[0], "it had brought something"


def test_answers_to_an_abandoned_replay_are_ignored() -> None:
    driven = following()
    driven.live(5)
    old = driven.asked
    assert old
    driven.stream.disconnected()
    driven.connect()
    driven.stream.replayed(old.ticket, 3, payload(3))
    driven.stream.replay_ended(old.ticket)
    driven.expect(0, 1, 2)
    assert driven.stream.state is StreamState.REPLAYING
