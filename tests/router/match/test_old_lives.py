"""What counts of a rank's cache that begins anew: nothing from before, and all that is told of it since."""

from tests.router.pick.picker_parts import BLOCK, Parts
from warmpath.indexer.keys.key import pack_words
from warmpath.indexer.trust import Level
from warmpath.indexer.watch.watched_source import WatchedRank
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2 as pb


def arriving(parts: Parts) -> dict[str, int]:
    return {one.candidate.pod: one.match.arriving_tokens for one in parts.weigh().options}


def test_what_arrives_at_a_cache_that_begins_anew_between_two_picks_of_the_same_pods_is_gone() -> (
    None
):
    parts = Parts(pods=2)
    _, choice = parts.choose()
    picked = choice.options[0].name
    assert arriving(parts)[picked.pod]
    rank = parts.ingest.rank(*picked)
    assert isinstance(rank, WatchedRank)
    rank.begin_snapshot()
    parts.tell(rank, "exact")
    assert not any(arriving(parts).values())


def test_what_arrives_at_a_rank_that_is_known_anew_by_the_same_name_is_gone() -> None:
    parts = Parts(pods=1)
    parts.ingest.rank("pod-0", 0).begin_snapshot()  # type: ignore[union-attr]
    parts.tell(parts.pods[0].ranks[0], "exact")  # type: ignore[arg-type]
    parts.choose()
    assert any(arriving(parts).values())
    parts.ingest.remove("pod-0", 0)
    parts.pods[0] = parts.pod("pod-0")
    assert not any(arriving(parts).values())


def test_of_a_snapshot_under_way_what_has_arrived_counts_although_the_rank_is_cold() -> None:
    parts = Parts(pods=1)
    [rank] = parts.pods[0].ranks
    assert isinstance(rank, WatchedRank)
    parts.warm(0, 4)
    rank.begin_snapshot()
    assert [one.match.known_tokens for one in parts.weigh().options] == [0]
    rank.take_part(pb.SnapshotPart(tier="gpu", keys=pack_words([1, 2])))
    assert rank.trust.level is Level.COLD
    assert [one.match.known_tokens for one in parts.weigh().options] == [2 * BLOCK]
