"""How a writer begins anew: with which token, and how soon."""

import logging
from collections.abc import Callable

import msgspec
import pytest

from tests.indexer.awake import Awake
from tests.indexer.shared.bucket_model import BucketModel
from tests.indexer.shared.writer_model import RedisModel
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.layout.record import Claim
from warmpath.indexer.shared.writer.lease import (
    AUDITS_OF_A_LEASE,
    FIRST_PAUSE,
    LAST_PAUSE,
    Cause,
    Commands,
    Rest,
)
from warmpath.indexer.shared.writer.machine import Writer, WriterState
from warmpath.indexer.watch.pod_cache import Journal, PodCache

LEASE = 10.0


class Stand:
    """A writer of a pod without ranks, and a model of Redis; time passes where the writer rests."""

    def __init__(self, lease: float = LEASE) -> None:
        self.now = 0.0
        self.names = KeyNames("t", buckets=3)
        self.redis = RedisModel(lambda: self.now)
        self.rests: list[float] = []
        cache = PodCache("p", Journal("epoch", 1000))
        cache.pulse = Awake(lambda: self.now)
        self.writer = Writer(
            self.names,
            cache,
            owner="one",
            keyspace="k",
            model="m",
            watch="",
            lease=lease,
            bucket_life=1e6,
            random_base=lambda: len(self.rests) + 1,
            clock=lambda: self.now,
        )
        self._steps = self.writer.steps()
        self._step = next(self._steps)

    def go_on(self, until: Callable[[], bool]) -> None:
        for _ in range(1000):
            if until():
                return
            if isinstance(self._step, Commands):
                self._step = self._steps.send([self.redis.run(one) for one in self._step.asked])
            else:
                assert isinstance(self._step, Rest)
                if not self._step.until_news:
                    # Nobody is to believe what is lost while it is not written yet.
                    assert "sound" not in self.redis.keys.get(self.names.record("p"), {})
                    self.rests.append(self._step.seconds)
                self.now += self._step.seconds
                self._step = self._steps.send(())
        raise AssertionError("it never comes to that")

    def audit(self, times: int) -> None:
        audits = self.writer.counts.audits + times
        self.go_on(lambda: self.writer.counts.audits == audits)

    def lose_a_bucket(self) -> None:
        self.redis.keys[self.names.bucket(1)] = BucketModel()
        rebuilds = self.writer.counts.rebuilds.total()
        self.go_on(lambda: self.writer.counts.rebuilds.total() == rebuilds + 1)


@pytest.fixture
def stand() -> Stand:
    return Stand()


def test_tokens_do_not_go_back_where_redis_was_emptied(stand: Stand) -> None:
    stand.audit(1)
    stand.lose_a_bucket()
    stand.audit(1)
    assert stand.writer.token == 2
    stand.redis.keys.clear()
    stand.go_on(lambda: stand.writer.token == 3 and stand.writer.state is WriterState.CURRENT)
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
    stand.go_on(lambda: stand.now > end)
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
        stand.go_on(lambda: stand.now > end)  # noqa: B023 - called within the round
        assert f"writer {owner}" not in caplog.text
        claim = Claim(owner, 1, [], "other keys", "other", 1, watch="h:1" if owner == "two" else "")
        said["claim"] = msgspec.json.encode(claim)
        end += LEASE / 4
        stand.go_on(lambda: stand.now > end)  # noqa: B023 - called within the round
    told = [one.message for one in caplog.records if one.levelno == logging.WARNING][-2:]
    unlike = "with model 'other', not 'm' and keyspace 'other keys', not 'k'"
    advice = "two publishers have --pod p: give each pod its own id"
    other = "pod p: shared index: writer"
    assert told == [
        f"{other} two has the pod, watched at h:1, {unlike}; {advice}",
        f"{other} three has the pod, which names no address, {unlike}; {advice}",
    ]
    assert caplog.text.count("has the pod,") == 2
