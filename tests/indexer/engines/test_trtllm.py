"""TensorRT-LLM's events: the dictionaries of its serializer, through codec, stream and index."""

import hashlib
import json
from typing import Any

import pytest

from tests.indexer.followed import following
from tests.indexer.trtllm_answers import CREATED, answer, block, moved, removed, stored
from tests.recordings import TRTLLM_V2_EVENTS
from warmpath.indexer.engines import trtllm
from warmpath.indexer.engines.event import (
    Cleared,
    Event,
    MalformedEventError,
    Moved,
    Removed,
    Stored,
    Tier,
)
from warmpath.indexer.follow.stream_source import RankIngest
from warmpath.indexer.keys.key import Keyspace, chain, pack_tokens
from warmpath.indexer.trust import Level

VECTORS = json.loads(TRTLLM_V2_EVENTS.read_bytes())
"""Answers of the second cache manager, written after its source, and what is held after each of them."""


def feed(rank: RankIngest, body: bytes) -> None:
    for payload in trtllm.split(body):
        _, event_id = trtllm.address(payload)
        assert rank.live("", event_id, payload) is None


def fed(body: bytes) -> RankIngest:
    rank = following(decode=trtllm.Codec(2))
    feed(rank, body)
    return rank


def decoded(*datas: dict[str, Any]) -> list[Event]:
    """Return the events of one answer, decoded by one codec."""
    codec = trtllm.Codec(2)
    return [event for one in trtllm.split(answer(*datas)) for event in codec(one).events]


def keys(*tokens: int) -> list[int]:
    return chain(Keyspace(model="m", block_size=2).root(), pack_tokens(tokens), 2)


def tiers(rank: RankIngest) -> dict[Tier, int]:
    return {tier: count for tier, count in rank.blocks().items() if count}


def test_stores_are_chained_and_removals_followed() -> None:
    rank = fed(answer(CREATED, stored(None, block(1 << 63, 1, 2), block(7, 3, 4))))
    assert rank.trust.level is Level.EXACT
    assert rank.capacity == 10
    root = keys(1, 2, 3, 4)
    assert rank.state.held()[Tier.GPU, 64] == set(root)
    feed(rank, answer(removed(7), first=2))
    assert rank.state.held()[Tier.GPU, 64] == set(root[:1])
    assert rank.state.counts.unknown_removals == 0


def test_an_offloaded_block_is_in_the_other_tier_and_comes_back() -> None:
    rank = fed(answer(CREATED, stored(None, block(1, 1, 2), block(2, 3, 4)), moved(2, 0, 1)))
    assert tiers(rank) == {Tier.GPU: 1, Tier.CPU: 1}
    feed(rank, answer(moved(2, 1, 0), first=3))
    assert tiers(rank) == {Tier.GPU: 2}
    feed(rank, answer(moved(2, 0, 1), removed(2), first=4))
    assert tiers(rank) == {Tier.GPU: 1}


def test_the_tail_of_a_sequence_is_passed_over_and_so_is_its_removal() -> None:
    rank = fed(answer(CREATED, stored(None, block(1, 1, 2), block(2, 3)), removed(2)))
    assert tiers(rank) == {Tier.GPU: 1}
    assert rank.trust.level is Level.EXACT


def test_a_hole_in_the_event_ids_is_a_loss() -> None:
    rank = fed(answer(CREATED, stored(None, block(1, 1, 2))))
    feed(rank, answer(stored(1, block(2, 3, 4)), first=5))
    assert rank.trust.level is Level.DEGRADED
    assert "2 to 4" in rank.trust.reason


def test_a_new_life_begins_with_created() -> None:
    rank = fed(answer(CREATED, stored(None, block(1, 1, 2))))
    feed(rank, answer(CREATED | {"num_blocks_per_cache_level": [11, 4]}))
    assert tiers(rank) == {}
    assert rank.trust.level is Level.EXACT


def test_of_several_windows_the_largest_counts() -> None:
    rank = fed(answer(CREATED, window=8))
    feed(rank, answer(CREATED, first=1, window=64))
    feed(rank, answer(stored(None, block(1, 1, 2), block(2, 3, 4)), first=2, window=8))
    feed(rank, answer(stored(None, block(1, 1, 2), block(2, 3, 4)), first=3, window=64))
    feed(rank, answer(removed(1), first=4, window=8))
    assert tiers(rank) == {Tier.GPU: 2}


def test_priorities_change_nothing() -> None:
    update = {"type": "updated", "block_hash": 1, "cache_level": None, "priority": {"x": 1}}
    rank = fed(answer(CREATED, stored(None, block(1, 1, 2)), update))
    assert tiers(rank) == {Tier.GPU: 1}
    assert rank.trust.level is Level.EXACT


def test_a_type_that_is_not_known_may_have_changed_anything() -> None:
    rank = fed(answer(CREATED, stored(None, block(1, 1, 2)), {"type": "compacted"}))
    assert tiers(rank) == {Tier.GPU: 1}
    assert rank.counts()["malformed"] == 1
    assert rank.trust.level is Level.DEGRADED
    assert "compacted of batch 2" in rank.trust.reason


def test_events_of_attention_ranks_are_told_apart() -> None:
    events = [{"event_id": 0, "data": CREATED, "attention_dp_rank": 3}]
    assert [trtllm.address(one) for one in trtllm.split(json.dumps(events).encode())] == [(3, 0)]


def test_what_a_block_depends_on_enters_its_extra() -> None:
    image = block(1, 5, 5) | {"mm_keys": [{"type": "mm_key", "hash": "aa", "start_offset": 0}]}
    [event] = decoded(stored(None, image))
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
    with pytest.raises(MalformedEventError):
        decoded(data)


@pytest.mark.parametrize("body", [b"", b"{}", b"[" * 9999])
def test_what_is_no_answer_is_malformed(body: bytes) -> None:
    with pytest.raises(MalformedEventError):
        trtllm.split(body)


@pytest.mark.parametrize(
    "event", [b"1", b'{"event_id": -1}', b'{"event_id": "x"}', b'{"data": {}}']
)
def test_an_event_without_a_number_has_no_address(event: bytes) -> None:
    with pytest.raises(MalformedEventError):
        trtllm.address(event)


def test_each_type_has_its_neutral_event() -> None:
    events = decoded(CREATED, stored(None, block(1, 1, 2)), removed(1), moved(1, 0, 1))
    assert [*map(type, events)] == [Cleared, Stored, Removed, Moved]


def digest(number: int) -> str:
    """Return a name or an item as the second cache manager writes it: a digest in hexadecimal."""
    return hashlib.sha256(bytes([number])).hexdigest()


def test_names_may_be_digests_in_hexadecimal() -> None:
    one, two = digest(1), digest(2)
    algorithm = {"hash_algo": "v2_sha256", "layer_group_id": 0}
    body = json.loads(
        answer(
            CREATED,
            stored(None, block(one, 1, 2), block(two, 3, 4)),
            moved(two, 0, 1),
            removed(two),
            stored(one, block(digest(3), 5, 6)),
        )
    )
    rank = fed(json.dumps([event | algorithm for event in body]).encode())
    assert rank.trust.level is Level.EXACT
    assert rank.state.held()[Tier.GPU, 64] == set(keys(1, 2, 5, 6))


def test_a_stored_blocks_salt_is_read() -> None:
    salted = [block(1, 1, 2) | {"cache_salt": "a"}, block(2, 3, 4) | {"cache_salt": "a"}]
    plain = [block(3, 1, 2) | {"cache_salt": None}]
    rank = fed(answer(CREATED, stored(None, *salted), stored(None, *plain)))
    root = Keyspace(model="m", block_size=2, cache_salt="a").root()
    apart = chain(root, pack_tokens([1, 2, 3, 4]), 2)
    assert rank.state.held()[Tier.GPU, 64] == {*apart, *keys(1, 2)}


def test_a_token_may_be_written_in_digits() -> None:
    one = block(1, 0, 0)
    for token, number in zip(one["tokens"], ("1", "4294967295"), strict=True):
        token["token_id"] = number
    rank = fed(answer(CREATED, stored(None, one)))
    assert rank.state.held()[Tier.GPU, 64] == set(keys(1, (1 << 32) - 1))


def test_a_block_whose_token_is_an_items_digest_is_kept_apart_from_every_request() -> None:
    found = []
    for item in (1, 2):
        first = block(1, 7, 0)
        first["tokens"][1]["token_id"] = digest(item)
        rank = fed(answer(CREATED, stored(None, first, block(2, 8, 9))))
        keys_held = rank.state.held()[Tier.GPU, 64]
        assert len(keys_held) == 2
        assert not keys_held & {*keys(7, 0, 8, 9)}
        found.append(keys_held)
    assert not found[0] & found[1]


@pytest.mark.parametrize("name", ["", "xyz", "abc", "ab cd", "0x12", "ab" * 65], ids=repr)
def test_a_name_that_is_no_digest_gets_a_reason(name: str) -> None:
    for data in (stored(None, block(name, 1, 2)), removed(name), moved(name, 0, 1)):
        with pytest.raises(MalformedEventError, match="neither a number nor a digest"):
            decoded(data)


@pytest.mark.parametrize("token", ["", "-1", "xyz", "12345678901", "1.5"], ids=repr)
def test_a_token_that_is_none_gets_a_reason(token: str) -> None:
    one = block(1, 0, 0)
    one["tokens"][0]["token_id"] = token
    with pytest.raises(MalformedEventError, match="token_id"):
        decoded(stored(None, one))


def test_each_answer_of_the_second_manager_leaves_what_its_source_holds() -> None:
    size = VECTORS["tokens_per_block"]
    rank = following(decode=trtllm.Codec(size))
    for told in VECTORS["answers"]:
        feed(rank, json.dumps(told["events"]).encode())
        expected: set[tuple[Tier, int]] = set()
        for one in told["held"]:
            space = Keyspace(model="m", block_size=size, cache_salt=one.get("cache_salt", ""))
            chained = chain(space.root(), pack_tokens(one["tokens"]), size)
            expected |= {(Tier(t), key) for t, key in zip(one["tiers"], chained, strict=True)}
        found = {
            (tier, key)
            for (tier, group), there in rank.state.held().items()
            for key in there
            if group == 64
        }
        assert expected <= found, told["why"]
        others = told.get("blocks_of_no_plain_prompt", 0)
        assert len(found) == len(expected) + others, told["why"]
        assert rank.trust.level is Level.EXACT, told["why"]
    assert rank.capacity == 40
