"""An answer of TensorRT-LLM's `/kv_cache_events`, whose events go to the ranks that they name."""

from collections.abc import Mapping

from indexer.engines.event import MalformedEventError
from indexer.engines.trtllm import address, split
from indexer.follow.rank_ingest import RankIngest


def take_answer(ranks: Mapping[int, RankIngest], answer: bytes) -> None:
    """Let each rank, by the engine's own number, take its events; those of other ranks are ignored."""
    try:
        events = split(answer)
    except MalformedEventError as error:
        _take_stray(ranks, error)
        return
    for event in events:
        try:
            number, event_id = address(event)
        except MalformedEventError as error:
            _take_stray(ranks, error)
            continue
        if number in ranks:
            rank = ranks[number]
            rank.live(rank.source.topic, event_id, event)


def _take_stray(ranks: Mapping[int, RankIngest], error: MalformedEventError) -> None:
    for rank in ranks.values():
        rank.frame_malformed(str(error))
