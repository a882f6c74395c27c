"""An answer of TensorRT-LLM's `/kv_cache_events`, whose events go to the ranks that they name."""

from collections.abc import Mapping

from warmpath.indexer.engines.event import MalformedEventError
from warmpath.indexer.engines.trtllm import address, split
from warmpath.indexer.follow.stream_source import RankIngest


def take_answer(ranks: Mapping[int, RankIngest], answer: bytes) -> None:
    """Let each rank take its events from an answer; `ranks` are by the engine's own numbers.

    All ranks count as connected then. Events of ranks not in `ranks` count as `strays` of the first one.
    """
    for rank in ranks.values():
        if not rank.is_connected:
            rank.connected()
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
        if (named := ranks.get(number)) is None:
            next(iter(ranks.values())).strays += 1
        else:
            named.live(named.source.topic, event_id, event)


def _take_stray(ranks: Mapping[int, RankIngest], error: MalformedEventError) -> None:
    for rank in ranks.values():
        rank.frame_malformed(str(error))
