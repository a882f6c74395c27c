"""TensorRT-LLM's events: the dictionaries of its serializer, through codec, stream and index."""

import json
from typing import Any

import pytest
from test_ingest import held, new_ingest, source

from indexer.engines import trtllm
from indexer.engines.event import Cleared, MalformedEventError, Moved, Removed, Stored, Tier
from indexer.key import Keyspace, chain
from indexer.rank_ingest import RankIngest
from indexer.token import pack_tokens
from indexer.trust import Level

CREATED = {"type": "created", "num_blocks_per_cache_level": [10, 4]}


def block(name: int, *tokens: int, level: int = 0) -> dict[str, Any]:
    return {
        "type": "stored_block", "block_hash": name, "cache_level": level, "priority": 35,
        "tokens": [{"type": "unique_token", "token_id": t, "token_extra_id": 0} for t in tokens],
    }  # fmt: skip


def stored(parent: int | None, *blocks: dict[str, Any]) -> dict[str, Any]:
    return {"type": "stored", "parent_hash": parent, "blocks": list(blocks)}


def removed(*names: int) -> dict[str, Any]:
    return {"type": "removed", "block_hashes": list(names)}


def moved(name: int, old: int, new: int) -> dict[str, Any]:
    diff = {"type": "event_diff", "old_value": old, "new_value": new}
    return {"type": "updated", "block_hash": name, "cache_level": diff, "priority": None}


def answer(*datas: dict[str, Any], first: int = 0, window: int = 64) -> bytes:
    events = [
        {"event_id": number, "data": data, "window_size": window}
        for number, data in enumerate(datas, first)
    ]
    return json.dumps(events).encode()


def feed(rank: RankIngest, body: bytes) -> None:
    for _, event_id, payload in trtllm.split(body):
        assert rank.live("", event_id, payload) is None


def following() -> RankIngest:
    rank = new_ingest().add(source(decode=trtllm.Codec(2), has_replay=False))
    rank.connected()
    return rank


def keys(*tokens: int) -> list[int]:
    return chain(Keyspace(model="m", block_size=2).root(), pack_tokens(tokens), 2)


def tiers(rank: RankIngest) -> dict[Tier, int]:
    return {tier: count for tier, count in rank.blocks().items() if count}


def test_stores_are_chained_and_removals_followed() -> None:
    rank = following()
    feed(rank, answer(CREATED, stored(None, block(1 << 63, 1, 2), block(7, 3, 4))))
    assert rank.trust.level is Level.EXACT
    assert rank.capacity == 10
    root = keys(1, 2, 3, 4)
    assert rank.state.held()[Tier.GPU, 64] == set(root)
    feed(rank, answer(removed(7), first=2))
    assert rank.state.held()[Tier.GPU, 64] == set(root[:1])
    assert rank.state.counts.unknown_removals == 0


def test_an_offloaded_block_is_in_the_other_tier_and_comes_back() -> None:
    rank = following()
    feed(rank, answer(CREATED, stored(None, block(1, 1, 2), block(2, 3, 4)), moved(2, 0, 1)))
    assert tiers(rank) == {Tier.GPU: 1, Tier.CPU: 1}
    feed(rank, answer(moved(2, 1, 0), first=3))
    assert tiers(rank) == {Tier.GPU: 2}
    feed(rank, answer(moved(2, 0, 1), removed(2), first=4))
    assert tiers(rank) == {Tier.GPU: 1}


def test_the_tail_of_a_sequence_is_passed_over_and_so_is_its_removal() -> None:
    rank = following()
    feed(rank, answer(CREATED, stored(None, block(1, 1, 2), block(2, 3)), removed(2)))
    assert tiers(rank) == {Tier.GPU: 1}
    assert rank.trust.level is Level.EXACT


def test_a_hole_in_the_event_ids_is_a_loss() -> None:
    rank = following()
    feed(rank, answer(CREATED, stored(None, block(1, 1, 2))))
    feed(rank, answer(stored(1, block(2, 3, 4)), first=5))
    assert rank.trust.level is Level.DEGRADED
    assert "2 to 4" in rank.trust.reason


def test_a_new_life_begins_with_created() -> None:
    rank = following()
    feed(rank, answer(CREATED, stored(None, block(1, 1, 2))))
    feed(rank, answer(CREATED | {"num_blocks_per_cache_level": [11, 4]}))
    assert tiers(rank) == {}
    assert rank.trust.level is Level.EXACT


def test_of_several_windows_the_largest_counts() -> None:
    rank = following()
    feed(rank, answer(CREATED, window=8))
    feed(rank, answer(CREATED, first=1, window=64))
    feed(rank, answer(stored(None, block(1, 1, 2), block(2, 3, 4)), first=2, window=8))
    feed(rank, answer(stored(None, block(1, 1, 2), block(2, 3, 4)), first=3, window=64))
    feed(rank, answer(removed(1), first=4, window=8))
    assert tiers(rank) == {Tier.GPU: 2}


def test_priorities_and_unknown_types_change_nothing() -> None:
    rank = following()
    update = {"type": "updated", "block_hash": 1, "cache_level": None, "priority": {"x": 1}}
    feed(rank, answer(CREATED, stored(None, block(1, 1, 2)), update, {"type": "compacted"}))
    assert tiers(rank) == {Tier.GPU: 1}
    assert rank.counts()["skipped"] == 1
    assert rank.trust.level is Level.EXACT


def test_events_of_attention_ranks_are_told_apart() -> None:
    events = [{"event_id": 0, "data": CREATED, "attention_dp_rank": 3}]
    assert [one[:2] for one in trtllm.split(json.dumps(events).encode())] == [(3, 0)]


def test_what_a_block_depends_on_enters_its_extra() -> None:
    image = block(1, 5, 5) | {"mm_keys": [{"type": "mm_key", "hash": "aa", "start_offset": 0}]}
    codec = trtllm.Codec(2)
    [(_, _, payload)] = trtllm.split(answer(stored(None, image)))
    [event] = codec(payload).events
    assert isinstance(event, Stored)
    assert event.extras


@pytest.mark.parametrize(
    "data",
    [
        stored(None, block(1, 1, 2, 3)),
        stored(None, block(1, 1), block(2, 3, 4)),
        stored(None, block(1, 1, -2)),
        stored(None, block(1, 1, 2, level=2)),
        moved(1, 0, 9),
        {"type": "stored"},
        {"type": 5},
        {},
    ],
    ids=str,
)
def test_a_wrong_field_makes_the_event_malformed(data: dict[str, Any]) -> None:
    [(_, _, payload)] = trtllm.split(answer(data))
    with pytest.raises(MalformedEventError):
        trtllm.Codec(2)(payload)


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[1]", b'[{"event_id": -1, "data": {}}]', b"[" * 9999]
)
def test_what_is_no_answer_is_malformed(body: bytes) -> None:
    with pytest.raises(MalformedEventError):
        trtllm.split(body)


def test_each_type_has_its_neutral_event() -> None:
    codec = trtllm.Codec(2)
    kinds = []
    for _, _, payload in trtllm.split(
        answer(CREATED, stored(None, block(1, 1, 2)), removed(1), moved(1, 0, 1))
    ):
        kinds += [type(event) for event in codec(payload).events]
    assert kinds == [Cleared, Stored, Removed, Moved]
    assert held(following()) == set()
