"""Nothing is believed of a rank's cache that was sent there before the cache began anew."""

from indexer.watch.watched_rank import WatchedRank
from tests.router.pick.picker_parts import Parts


def arriving(parts: Parts) -> dict[str, int]:
    return {one.pod.id: one.match.arriving_tokens for one in parts.weigh().options}


def test_what_arrives_at_a_cache_that_begins_anew_between_two_picks_of_the_same_pods_is_gone() -> (
    None
):
    parts = Parts(pods=2)
    _, choice = parts.choose()
    picked = choice.options[0]
    assert arriving(parts)[picked.pod.id]
    assert isinstance(picked.rank, WatchedRank)
    picked.rank.begin_snapshot()
    parts.tell(picked.rank, "exact")
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
