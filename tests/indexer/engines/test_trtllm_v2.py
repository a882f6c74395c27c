"""TensorRT-LLM's second cache manager: answers after its source, and what is held after each of them."""

import json

from tests.indexer.followed import new_ingest, source
from tests.recordings import TRTLLM_V2_EVENTS
from warmpath.indexer.engines import trtllm
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.keys.key import Keyspace, chain, pack_tokens
from warmpath.indexer.trust import Level

WINDOW = 64
VECTORS = json.loads(TRTLLM_V2_EVENTS.read_bytes())


def test_each_answer_of_the_second_manager_leaves_what_its_source_holds() -> None:
    size = VECTORS["tokens_per_block"]
    rank = new_ingest().add(source(decode=trtllm.Codec(size), has_replay=False))
    rank.connected()
    for answer in VECTORS["answers"]:
        for payload in trtllm.split(json.dumps(answer["events"]).encode()):
            _, event_id = trtllm.address(payload)
            rank.live("", event_id, payload)
        expected: set[tuple[Tier, int]] = set()
        for one in answer["held"]:
            space = Keyspace(model="m", block_size=size, cache_salt=one.get("cache_salt", ""))
            keys = chain(space.root(), pack_tokens(one["tokens"]), size)
            expected |= {(Tier(t), key) for t, key in zip(one["tiers"], keys, strict=True)}
        found = {
            (tier, key)
            for (tier, group), keys in rank.state.held().items()
            for key in keys
            if group == WINDOW
        }
        assert expected <= found, answer["why"]
        others = answer.get("blocks_of_no_plain_prompt", 0)
        assert len(found) == len(expected) + others, answer["why"]
        assert rank.trust.level is Level.EXACT, answer["why"]
    assert rank.capacity == 40
