"""How a writer begins anew: with which token, and how soon; and how much of its log is kept."""

import logging
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.indexer.shared.inside import check_log
from tests.indexer.shared.publisher_model import Driven, FollowedPod, new_writer
from tests.indexer.shared.redis_model import BucketModel, RedisModel
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.layout.record import Claim
from warmpath.indexer.shared.writer.lease import (
    AUDITS_OF_A_LEASE,
    FIRST_PAUSE,
    LAST_PAUSE,
    Cause,
    Rest,
)
from warmpath.indexer.shared.writer.machine import WriterState
from warmpath.indexer.shared.writer.tenure import KeptLog

LEASE = 10.0


class Stand(Driven):
    """A writer of a pod without ranks, and a model of Redis; time passes where the writer rests."""

    def __init__(self, lease: float = LEASE) -> None:
        self.now = 0.0
        self.names = KeyNames("t", buckets=3)
        self.redis = RedisModel(lambda: self.now)
        self.rests: list[float] = []
        pod = FollowedPod("p", [], lambda: self.now)
        writer = new_writer(
            self.names, pod.cache, lambda: self.now,
            owner="one", lease=lease, bucket_life=1e6, random_base=lambda: len(self.rests) + 1,
        )  # fmt: skip
        super().__init__(writer, lambda: self.now)

    def live(self, until: Callable[[], bool]) -> None:
        for _ in range(1000):
            if until():
                return
            if isinstance(self.step, Rest):
                if not self.step.until_news:
                    # Nobody is to believe what is lost while it is not written yet.
                    assert "sound" not in self.redis.keys.get(self.names.record("p"), {})
                    self.rests.append(self.step.seconds)
                self.now += self.step.seconds
            self.go_on([self.redis.run(one) for one in self.asked])
        raise AssertionError("it never comes to that")

    def audit(self, times: int) -> None:
        audits = self.writer.counts.audits + times
        self.live(lambda: self.writer.counts.audits == audits)

    def lose_a_bucket(self) -> None:
        self.redis.keys[self.names.bucket(1)] = BucketModel()
        rebuilds = self.writer.counts.rebuilds.total()
        self.live(lambda: self.writer.counts.rebuilds.total() == rebuilds + 1)


@pytest.fixture
def stand() -> Stand:
    return Stand()


def test_tokens_do_not_go_back_where_redis_was_emptied(stand: Stand) -> None:
    stand.audit(1)
    stand.lose_a_bucket()
    stand.audit(1)
    assert stand.writer.token == 2
    stand.redis.keys.clear()
    stand.live(lambda: stand.writer.token == 3 and stand.writer.state is WriterState.CURRENT)
    # That its record has gone is found first; nothing else was in the way.
    assert stand.writer.counts.rebuilds == {Cause.START: 1, Cause.LOST: 1, Cause.RECORD: 1}


def test_what_is_lost_after_a_lease_or_more_is_written_anew_at_once(stand: Stand) -> None:
    for _ in range(3):
        stand.audit(AUDITS_OF_A_LEASE + 1)
        stand.lose_a_bucket()
    stand.audit(1)
    assert stand.rests == []


def test_what_is_lost_again_and_again_is_written_ever_more_slowly(stand: Stand) -> None:
    for _ in range(8):
        stand.audit(2)
        stand.lose_a_bucket()
    stand.audit(1)
    assert stand.rests == sorted(stand.rests)
    assert (stand.rests[0], stand.rests[-1]) == (FIRST_PAUSE, LAST_PAUSE)


def test_a_short_lease_is_kept_too_while_nothing_can_be_written() -> None:
    stand = Stand(lease=1.0)
    stand.audit(1)
    stand.redis.full = True
    # An audit writes a little.
    end = stand.now + 20.0
    stand.live(lambda: stand.now > end)
    assert stand.writer.trouble.startswith("OOM")
    assert stand.names.record("p") in stand.redis.keys
    stand.redis.full = False
    stand.audit(2)
    assert stand.writer.counts.rebuilds == {Cause.START: 1}


def test_what_the_other_writer_of_a_pod_has_otherwise_is_named_once_for_each(
    stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    stand.audit(1)
    record = stand.names.record("p")
    for owner in ("two", "three"):
        said = stand.redis.keys[record]
        said |= {"owner": owner, "token": str(int(said["token"]) + 1)}
        said.pop("sound", None)
        # What it says of the content is the earlier writer's until its own is complete.
        end = stand.now + LEASE / 4
        stand.redis.expiry[record] = end + 10 * LEASE
        stand.live(lambda: stand.now > end)  # noqa: B023 - called within the round
        assert f"writer {owner}" not in caplog.text
        claim = Claim(owner, 1, [], "other keys", "other", 1, watch="h:1" if owner == "two" else "")
        said["claim"] = msgspec.json.encode(claim)
        end += LEASE / 4
        stand.live(lambda: stand.now > end)  # noqa: B023 - called within the round
    told = [one.message for one in caplog.records if one.levelno == logging.WARNING][-2:]
    unlike = "with model 'other', not 'm' and keyspace 'other keys', not 'k'"
    advice = "two publishers have --pod p: give each pod its own id"
    other = "pod p: shared index: writer"
    assert told == [
        f"{other} two has the pod, watched at h:1, {unlike}; {advice}",
        f"{other} three has the pod, which names no address, {unlike}; {advice}",
    ]
    assert caplog.text.count("has the pod,") == 2


@given(st.lists(st.integers(0, 50), min_size=1))
def test_no_more_entries_and_bytes_are_kept_than_may_be_unless_the_last_alone_is_larger(
    sizes: list[int],
) -> None:
    log = KeptLog(entries=4, max_bytes=60)
    for last, size in enumerate(sizes, 1):
        first = log.add(last, size)
        kept = sizes[first - 1 : last]
        assert 1 <= len(kept) <= 4
        assert sum(kept) <= 60 or len(kept) == 1
        assert log.bytes == sum(kept)
        # Nothing is let go that could have been kept.
        if first > 1:
            assert len(kept) == 4 or sum(sizes[first - 2 : last]) > 60
        check_log(log)
