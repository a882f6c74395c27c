"""The metrics of ranks say nothing of what nobody can know."""

from tests.conformance.reference_index import ReferenceIndex
from tests.router.pick.picker_parts import Parts
from warmpath.indexer.engines import vllm
from warmpath.indexer.follow.instance import RankSource
from warmpath.indexer.ranks import Ingest
from warmpath.router.assemble.scraped import ranks


def test_only_ranks_with_events_have_a_level_of_trust() -> None:
    ingest = Ingest(
        ReferenceIndex(), hash_seed="", pending_bytes=1, stale_after=1.0, clock=lambda: 0.0
    )
    ingest.add(RankSource("followed", 0, "m", vllm.decode, has_replay=False))
    ingest.add_blind("blind", 0)
    [trust] = [
        metric
        for metric in ranks(ingest, Parts(pods=0).loads)
        if metric and metric.name == "warmpath_rank_trust"
    ]
    found = {(one.labels["pod"], one.labels["level"]): one.value for one in trust.samples}
    assert {pod for pod, _ in found} == {"followed"}
    assert found["followed", "cold"] == 1.0
