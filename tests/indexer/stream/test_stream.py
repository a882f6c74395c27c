"""The stream machine: order, gaps, replays, restarts, and what they do to trust."""

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

    def connect(self) -> None:
        self.stream.connected()
        check(self.stream)

    def live(self, *sequences: int, life: int = 0) -> None:
        for sequence in sequences:
            self.stream.live(sequence, payload(sequence, life))
            check(self.stream)

    def answer(self, *sequences: int, life: int = 0, end: bool = True) -> None:
        asked = self.asked
        assert asked is not None
        for sequence in sequences:
            self.stream.replayed(asked.ticket, sequence, payload(sequence, life))
            check(self.stream)
        if end:
            self.stream.replay_ended(asked.ticket)
            check(self.stream)

    def fail(self, reason: str = "no answer") -> None:
        """Let the replay break off."""
        asked = self.asked
        assert asked is not None
        self.stream.replay_failed(asked.ticket, reason)
        check(self.stream)

    def stray(self) -> None:
        self.stream.stray("a message is no frame")
        check(self.stream)

    def level(self) -> Level:
        return self.stream.trust.level

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


def test_a_new_stream_is_cold_and_asks_for_everything() -> None:
    driven = Driven()
    assert driven.level() is Level.COLD
    driven.connect()
    assert driven.asked is not None
    assert driven.asked.start == 0
    assert driven.level() is Level.COLD


def test_an_engine_that_has_published_nothing_is_exact() -> None:
    driven = connected()
    driven.answer()
    assert driven.level() is Level.EXACT
    assert driven.stream.sequence is None


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


def test_answers_that_are_no_batches_end_no_check_and_restart_nothing() -> None:
    driven = connected()
    driven.answer(0)
    for _ in range(5):
        driven.stray()
        driven.answer()
        assert driven.resets == 0
        assert driven.level() is Level.DEGRADED
    driven.answer(0, 1)
    driven.expect(0, 1)
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


def test_live_batches_are_held_until_the_replay_is_over() -> None:
    driven = connected()
    driven.live(2, 3)
    driven.expect()
    driven.answer(0, 1, 2, end=False)
    driven.expect(0, 1, 2)
    assert driven.level() is Level.COLD
    driven.answer()
    driven.expect(0, 1, 2, 3)
    assert driven.level() is Level.EXACT
    assert driven.stream.counts.duplicates == 1


def test_joining_after_the_buffer_has_forgotten_is_degraded() -> None:
    driven = connected()
    driven.answer(7, 8)
    driven.live(9)
    driven.expect(7, 8, 9)
    assert driven.level() is Level.DEGRADED
    assert "begins at 7" in driven.stream.trust.reason


def test_joining_late_without_replay_is_degraded() -> None:
    driven = connected(has_replay=False)
    driven.live(7)
    driven.expect(7)
    assert driven.level() is Level.DEGRADED


def test_joining_at_the_first_batch_without_replay_is_exact() -> None:
    driven = connected(has_replay=False)
    driven.live(0, 1)
    driven.expect(0, 1)
    assert driven.level() is Level.EXACT


def test_a_duplicate_is_dropped() -> None:
    driven = following()
    driven.live(2, 1)
    driven.expect(0, 1, 2)
    assert driven.level() is Level.EXACT
    assert driven.stream.counts.duplicates == 2


def test_batches_that_a_replay_has_overtaken_by_far_are_duplicates() -> None:
    driven = following(1)
    driven.live(4 * KEPT)
    assert driven.asked is not None
    driven.answer(*range(9 * KEPT))
    driven.live(*range(4 * KEPT + 1, 9 * KEPT + 1))
    assert driven.resets == 0
    assert driven.level() is Level.EXACT
    driven.expect(*range(9 * KEPT + 1))


def test_batches_that_waited_while_the_first_replay_ran_are_duplicates() -> None:
    driven = connected()
    driven.answer(*range(3 * KEPT))
    driven.live(*range(KEPT, 3 * KEPT + 1))
    assert driven.level() is Level.DEGRADED, "a new life may begin like this"
    driven.answer(3 * KEPT - 1)
    assert driven.resets == 0
    assert driven.level() is Level.EXACT
    driven.expect(*range(3 * KEPT + 1))


def test_a_restart_behind_a_proxy_after_a_long_replay_is_found_out_by_the_next_batch() -> None:
    driven = connected()
    driven.answer(*range(3 * KEPT))
    assert driven.level() is Level.EXACT
    driven.live(0, life=1)
    assert driven.level() is Level.DEGRADED
    driven.answer()
    assert driven.resets == 1
    driven.answer(0, life=1)
    driven.live(1, life=1)
    driven.expect(0, 1, life=1)
    assert driven.level() is Level.EXACT


@pytest.mark.parametrize("has_replay", [True, False])
def test_a_sequence_that_goes_back_by_far_is_a_restart(has_replay: bool) -> None:
    driven = following(3 * KEPT, has_replay=has_replay)
    driven.live(0, life=1)
    assert driven.resets == 1
    driven.expect(0, life=1)


def test_a_connection_without_replay_whose_sequence_begins_far_before_is_a_restart() -> None:
    driven = following(3 * KEPT, has_replay=False)
    driven.stream.disconnected()
    driven.connect()
    driven.live(5, life=1)
    assert driven.resets == 1


def test_a_gap_is_not_exact_until_replay_has_closed_it() -> None:
    driven = following()
    driven.live(5)
    assert driven.level() is Level.DEGRADED
    assert driven.asked is not None
    assert driven.asked.start == 2, "the replay begins at the fence"
    driven.live(6)
    driven.answer(2, 3, 4, 5)
    driven.expect(0, 1, 2, 3, 4, 5, 6)
    assert driven.level() is Level.EXACT


def test_a_gap_that_replay_cannot_close_is_degraded_and_passed() -> None:
    driven = following()
    driven.live(5)
    driven.answer(2, 3, 5)
    driven.live(6)
    driven.expect(0, 1, 2, 3, 5, 6)
    assert driven.level() is Level.DEGRADED
    assert "batches 4 to 4" in driven.stream.trust.reason


def test_a_batch_lost_behind_the_replay_is_asked_for_once_more() -> None:
    driven = following()
    driven.live(5, 8)
    driven.answer(2, 3, 4, 5)
    assert driven.stream.state is StreamState.REPLAYING
    assert driven.level() is Level.DEGRADED
    driven.answer(5, 6, 7, 8)
    driven.expect(*range(9))
    assert driven.level() is Level.EXACT


def test_a_buffer_that_begins_after_the_fence_degrades() -> None:
    driven = following()
    driven.live(9)
    driven.answer(6, 7, 8, 9)
    driven.expect(0, 1, 2, 6, 7, 8, 9)
    assert driven.level() is Level.DEGRADED


def test_a_replay_that_breaks_off_is_resumed_from_where_it_stopped() -> None:
    driven = broken_off("no answer within 10 s")
    assert driven.level() is Level.DEGRADED
    assert "no answer within 10 s; it is requested again" in driven.stream.trust.reason
    assert driven.asked
    assert driven.asked.start == 3, "the last batch of it is the fence"
    driven.live(8)
    driven.answer(3, 4, 5, 6, 7, 8)
    driven.expect(*range(9))
    assert driven.level() is Level.EXACT
    assert not driven.doubts, "nothing that is shown was ever in doubt"


def test_a_first_replay_that_breaks_off_is_resumed() -> None:
    driven = connected()
    driven.fail()
    assert driven.level() is Level.COLD
    assert "replay failed" in driven.stream.trust.reason
    driven.answer(0, 1, end=False)
    driven.fail()
    assert driven.level() is Level.DEGRADED, "what is shown so far is of before"
    driven.answer(1, 2)
    driven.expect(0, 1, 2)
    assert driven.level() is Level.EXACT


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


def test_a_replay_is_resumed_until_the_publisher_says_that_its_buffer_begins_later() -> None:
    driven = broken_off()
    driven.answer(6, 7)
    driven.live(8)
    driven.expect(0, 1, 2, 3, 6, 7, 8)
    assert driven.level() is Level.DEGRADED
    assert "begins at 6" in driven.stream.trust.reason
    assert driven.doubts


def test_a_restart_between_a_replay_and_what_resumes_it_is_caught_at_the_fence() -> None:
    driven = broken_off()
    driven.answer(3, 4, life=1)
    assert driven.resets == 1
    driven.answer(0, 1, 2, 3, 4, life=1)
    driven.expect(*range(5), life=1)
    assert driven.level() is Level.EXACT


def test_where_replays_only_fail_the_stream_goes_on_with_what_comes_live() -> None:
    driven = following()
    driven.live(5)
    for _ in range(PATIENCE):
        assert driven.stream.state is StreamState.REPLAYING
        driven.fail()
    driven.live(6)
    driven.expect(0, 1, 2, 5, 6)
    assert driven.level() is Level.DEGRADED
    assert "replay failed: no answer" in driven.stream.trust.reason
    assert driven.doubts


def test_a_replay_endpoint_that_never_answered_is_given_up_sooner() -> None:
    driven = connected()
    driven.live(5)
    for _ in range(FIRST_PATIENCE):
        assert driven.level() is Level.COLD
        driven.fail()
    driven.expect(5)
    assert driven.level() is Level.DEGRADED


def test_a_replay_that_fails_while_nothing_is_missing_yet_is_never_given_up() -> None:
    driven = reconnected()
    for _ in range(5 * PATIENCE):
        driven.fail()
    driven.answer(2, 3)
    driven.expect(0, 1, 2, 3)
    assert driven.level() is Level.EXACT


def test_a_message_that_is_no_batch_costs_trust_until_the_next_batch_is_in_order() -> None:
    for has_replay in (True, False):
        driven = following(has_replay=has_replay)
        driven.stray()
        assert driven.level() is Level.DEGRADED
        assert driven.stream.trust.reason == "a message is no frame"
        driven.live(3)
        assert driven.level() is Level.EXACT
        assert not driven.doubts
        driven.expect(0, 1, 2, 3)


def test_a_batch_that_came_as_a_message_that_is_none_is_missing() -> None:
    driven = following()
    driven.stray()
    driven.live(4)
    assert driven.level() is Level.DEGRADED
    driven.answer(2, 3, 4)
    driven.expect(0, 1, 2, 3, 4)
    assert driven.level() is Level.EXACT
    driven = following(has_replay=False)
    driven.stray()
    driven.live(4, 5)
    assert driven.level() is Level.DEGRADED
    assert driven.doubts


def test_a_message_that_is_no_batch_during_a_replay_leaves_open_whether_one_is_missing() -> None:
    driven = following()
    driven.live(4)
    driven.stray()
    driven.answer(2, 3, 4)
    assert driven.level() is Level.DEGRADED, "it may have been batch 5"
    driven.live(5)
    assert driven.level() is Level.EXACT


def test_a_clear_in_a_held_batch_does_not_make_good_a_message_behind_it_that_is_no_batch() -> None:
    driven = following()
    driven.live(4, 5)
    driven.stray()
    driven.answer(2, 3, 4)
    driven.stream.cleared(5)
    check(driven.stream)
    assert driven.level() is Level.DEGRADED, "it may have been batch 6"
    driven.live(6)
    assert driven.level() is Level.EXACT


def test_a_turn_over_in_held_batches_does_not_make_good_a_message_behind_them_that_is_no_batch() -> (
    None
):
    driven = following()
    driven.stream.lacks("a store cannot be read")
    driven.live(4, 5)
    driven.stray()
    driven.answer(2, 3, 4)
    driven.stream.turned_over()
    check(driven.stream)
    assert driven.level() is Level.DEGRADED, "it may have been batch 6"


def test_a_replay_whose_first_message_is_no_batch_is_no_restart() -> None:
    driven = reconnected()
    driven.stray()
    driven.answer()
    assert driven.resets == 0
    driven.answer(2)
    driven.expect(0, 1, 2)
    assert driven.level() is Level.EXACT


def test_what_lacks_blocks_is_degraded_and_nothing_of_it_in_doubt() -> None:
    driven = following()
    driven.stream.lacks("a store cannot be read")
    assert driven.level() is Level.DEGRADED
    assert not driven.doubts
    driven.stream.cleared(2)
    assert driven.level() is Level.DEGRADED, "a clear before it makes nothing good"
    driven.live(3)
    driven.stream.cleared(3)
    assert driven.level() is Level.EXACT


def test_what_lacks_blocks_while_a_replay_runs_is_not_exact_behind_it() -> None:
    driven = connected()
    driven.answer(0, 1, end=False)
    driven.stream.lacks("a store cannot be read")
    driven.answer()
    assert driven.level() is Level.DEGRADED


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


def test_a_restart_seen_live_begins_a_new_life() -> None:
    driven = following()
    driven.live(0, 1, life=1)
    driven.expect(0, 1, life=1)
    assert driven.resets == 1
    assert driven.level() is Level.EXACT


def test_a_restart_whose_first_batches_were_missed_is_replayed_from_the_start() -> None:
    driven = following(10)
    driven.live(2, life=1)
    assert driven.level() is Level.COLD
    driven.answer(0, 1, 2, life=1)
    driven.expect(0, 1, 2, life=1)
    assert driven.level() is Level.EXACT


def test_a_restart_that_looks_like_a_gap_is_caught_at_the_fence() -> None:
    driven = following()
    driven.live(5, life=1)
    driven.answer(2, 3, 4, 5, life=1)
    assert driven.resets == 1
    driven.answer(0, 1, 2, 3, 4, 5, life=1)
    driven.expect(*range(6), life=1)
    assert driven.level() is Level.EXACT


def test_a_restart_while_disconnected_is_caught_by_the_empty_buffer() -> None:
    driven = reconnected()
    assert driven.level() is Level.DEGRADED, "not exact while it is not known what was missed"
    driven.answer()
    assert driven.resets == 1
    driven.answer()
    assert driven.level() is Level.EXACT
    driven.live(0, life=1)
    driven.expect(0, life=1)


def test_a_new_life_that_is_shorter_than_the_last_one_is_not_exact_before_it_is_replayed() -> None:
    driven = following(10)
    driven.stream.disconnected()
    driven.connect()
    driven.answer()
    assert driven.resets == 1
    assert driven.level() is Level.COLD, "its batches 0 to 3 are not here yet"
    driven.answer(0, 1, 2, 3, life=1)
    driven.expect(0, 1, 2, 3, life=1)
    assert driven.level() is Level.EXACT


def test_what_was_held_while_the_replay_of_a_new_life_came_back_empty_is_taken_once() -> None:
    driven = reconnected()
    driven.live(0, 1, life=1)
    driven.answer()
    assert driven.resets == 1
    driven.answer(0, 1, life=1)
    driven.expect(0, 1, life=1)
    assert driven.stream.counts.duplicates == 0
    assert driven.level() is Level.EXACT


def test_a_reconnection_that_missed_nothing_is_exact_again() -> None:
    driven = reconnected()
    driven.answer(2)
    driven.expect(0, 1, 2)
    assert driven.resets == 0
    assert driven.level() is Level.EXACT


def test_a_reconnection_without_replay_is_degraded_until_a_clear() -> None:
    driven = reconnected(has_replay=False)
    assert driven.level() is Level.DEGRADED
    driven.live(3)
    driven.stream.cleared(3)
    assert driven.level() is Level.EXACT


def test_a_malformed_batch_degrades_until_a_later_clear() -> None:
    driven = following()
    driven.stream.malformed(2, "not msgpack")
    assert driven.level() is Level.DEGRADED
    driven.stream.cleared(2)
    assert driven.level() is Level.DEGRADED, "a clear before the damage makes nothing good"
    driven.live(3)
    driven.stream.cleared(3)
    assert driven.level() is Level.EXACT


def test_a_held_batch_that_is_malformed_is_named_and_healed_by_a_clear_behind_it() -> None:
    driven = following()
    driven.live(4, 5)
    driven.answer(2, 3)
    driven.stream.malformed(4, "not msgpack")
    assert driven.stream.trust.reason == "batch 4 is malformed: not msgpack"
    driven.stream.cleared(5)
    assert driven.level() is Level.EXACT


def test_a_clear_before_a_loss_does_not_make_it_good() -> None:
    driven = following()
    driven.live(5)
    driven.answer(2, 3, 5)
    driven.stream.cleared(3)
    assert driven.level() is Level.DEGRADED
    driven.stream.cleared(5)
    assert driven.level() is Level.EXACT


def test_held_batches_past_the_bound_are_asked_for_again() -> None:
    driven = connected(pending_bytes=6)
    driven.live(1, 2, 3)
    assert driven.stream.counts.overflows == 1
    driven.answer(0)
    assert driven.asked is not None
    assert driven.asked.start == 0
    driven.answer(0, 1, 2, 3)
    driven.expect(0, 1, 2, 3)
    assert driven.level() is Level.EXACT
