"""vLLM's codec against the bytes that real versions of vLLM made."""

import contextlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.indexer.sides import removed, stored
from tests.recordings import VLLM_EVENTS
from warmpath.indexer.engines import vllm
from warmpath.indexer.engines.event import (
    Batch,
    Cleared,
    MalformedEventError,
    Removed,
    Stored,
    Tier,
    UnreadableEvent,
)
from warmpath.indexer.engines.wire import decode_batch
from warmpath.indexer.keys.key import Item, extras_of, next_token, pack_tokens

FILE = json.loads(VLLM_EVENTS.read_text())
VECTORS = {vector["name"]: vector for vector in FILE["vectors"]}


def from_json(value: Any) -> Any:
    """Bring the vectors' JSON form of bytes back to bytes."""
    if isinstance(value, dict):
        if set(value) == {"$bytes"}:
            return bytes.fromhex(value["$bytes"])
        return {key: from_json(item) for key, item in value.items()}
    return [from_json(item) for item in value] if isinstance(value, list) else value


def decoded(*events: object) -> Batch:
    """Return a batch of these events, encoded and decoded."""
    return vllm.decode(msgspec.msgpack.encode([1.0, events, 0]))


def payload(name: str) -> bytes:
    return bytes.fromhex(VECTORS[name]["payload_hex"])


@pytest.mark.parametrize("name", VECTORS)
def test_every_vector_decodes_to_what_it_states(name: str) -> None:
    stated = from_json(VECTORS[name]["decoded"])
    wire = decode_batch(payload(name), vllm.READERS)
    events = [
        {"type": type(event).__name__, **msgspec.to_builtins(event, builtin_types=(bytes,))}
        for event in wire.events
    ]
    # Most vectors were made before 0.33 added it.
    newest = {"lookahead_token_ids": None}
    assert events == [
        (newest if event["type"] == "BlockStored" else {}) | event for event in stated["events"]
    ]
    assert wire.ts == stated["ts"]
    assert wire.data_parallel_rank == stated["data_parallel_rank"]


@pytest.mark.parametrize("name", VECTORS)
def test_every_vector_becomes_neutral_events(name: str) -> None:
    wire = decode_batch(payload(name), vllm.READERS)
    batch = vllm.decode(payload(name))
    assert len(batch.events) == len(wire.events)
    for event, raw in zip(batch.events, wire.events, strict=True):
        if isinstance(raw, vllm.BlockStored):
            assert isinstance(event, Stored)
            assert len(event.hashes) == len(raw.block_hashes)
            whole = raw.block_size and len(raw.token_ids) == len(raw.block_hashes) * raw.block_size
            assert event.tokens == (pack_tokens(raw.token_ids) if whole else None)
        elif isinstance(raw, vllm.BlockRemoved):
            assert isinstance(event, Removed)
        else:
            assert event == Cleared()


def test_signed_hashes_of_old_versions_are_brought_to_unsigned() -> None:
    [event, *_] = vllm.decode(payload("v0.9.0.1-builtin-hash-negative")).events
    assert isinstance(event, Stored)
    assert all(isinstance(name, int) and 0 <= name < 1 << 64 for name in event.hashes)


def test_a_salt_is_read_from_the_first_block_only() -> None:
    [event] = vllm.decode(payload("stored-salt-first-block-only")).events
    assert isinstance(event, Stored)
    assert event.cache_salt
    assert event.extras is None


def test_items_enter_the_extras_as_a_request_states_them() -> None:
    [event] = vllm.decode(payload("stored-mm-keys")).events
    [raw] = decode_batch(payload("stored-mm-keys"), vllm.READERS).events
    assert isinstance(event, Stored)
    assert isinstance(raw, vllm.BlockStored)
    assert event.extras
    assert raw.extra_keys
    first = next(entry for entry in raw.extra_keys if entry)
    block = raw.extra_keys.index(first)
    name, offset = first[0]
    length = sum(name in str(entry) for entry in raw.extra_keys) * raw.block_size - max(offset, 0)
    item = Item(name, block * raw.block_size + offset, length)
    wanted = extras_of([item], raw.block_size, len(raw.block_hashes))
    assert wanted is not None
    assert event.extras[block] == wanted[block]


def test_a_placeholder_of_an_offload_tier_has_no_tokens() -> None:
    [event] = vllm.decode(payload("stored-cpu-placeholder")).events
    assert isinstance(event, Stored)
    assert event.tokens is None
    assert event.tier is Tier.CPU


def test_an_event_of_an_unknown_type_is_told() -> None:
    batch = decoded(STORE, {"type": "BlockDreamt"})
    assert [type(event) for event in batch.events] == [Stored]
    assert batch.unread == (UnreadableEvent("BlockDreamt", "its type is not known"),)


def test_what_a_clear_makes_moot_need_not_be_read() -> None:
    odd = STORE | {"extra_keys": [{"new": "shape"}]}
    batch = decoded(odd, {"type": "BlockDreamt"}, ["AllBlocksCleared"])
    assert batch.events == (Cleared(),)
    assert batch.unread == ()


def test_unknown_fields_and_extra_elements_are_ignored() -> None:
    as_map = {"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU", "mood": 3}
    as_array = ["BlockRemoved", [1], "GPU", None, None, None, "new", 4]
    batch = vllm.decode(msgspec.msgpack.encode([1.0, [as_map, as_array], 0, "more"]))
    assert batch.events == (Removed((1,)), Removed((1,)))


STORE, REMOVED = stored([1], [1, 2], None, 2), removed([7])


@pytest.mark.parametrize(
    "bad",
    [
        {"block_hashes": ["x"]},
        {"block_hashes": None},
        {"token_ids": [1, -1]},
        {"token_ids": [1, 1 << 32]},
        {"token_ids": "12"},
        {"block_size": -2},
        {"block_size": None},
        {"extra_keys": [["a"], ["b"]], "block_hashes": [1]},
        {"extra_keys": [[["a", "b"]]]},
        {"extra_keys": [[1.5]]},
        {"lora_name": 7},
        {"medium": 7},
        {"parent_block_hash": 1.5},
        {"group_idx": "0"},
        {"group_idx": -1, "kv_cache_spec_kind": "full_attention"},
        {"extra_keys": [[["mm", "img", 3]]]},
    ],
)
def test_an_event_with_a_wrong_field_costs_itself_and_not_its_batch(bad: dict[str, Any]) -> None:
    batch = decoded(REMOVED, STORE | bad, REMOVED)
    assert batch.events == (Removed((7,)), Removed((7,)))
    [unread] = batch.unread
    assert unread.kind in ("BlockStored", "")


NO_UTF8 = msgspec.Raw(b"\x91\xa2\xff\xfe")
MAP_AS_KEY = msgspec.Raw(b"\x81\x80\x00")


@pytest.mark.parametrize(
    "event", [5, None, [], {}, [5], {"type": 5}, {"type": None}, "BlockStored", NO_UTF8, MAP_AS_KEY]
)
def test_what_is_no_event_costs_itself_and_not_its_batch(event: object) -> None:
    batch = decoded(STORE, event, STORE)
    assert len(batch.events) == 2
    [unread] = batch.unread
    assert not unread.is_store


def test_a_removal_of_a_negative_group_is_refused() -> None:
    batch = decoded(REMOVED | {"group_idx": -1})
    assert batch.events == ()
    [unread] = batch.unread
    assert unread == UnreadableEvent("BlockRemoved", "group_idx is -1; it must be 0 or more")


@pytest.mark.parametrize(
    "frame", [b"", b"\xc1", b"\x93", b"\x91" * 100_000, msgspec.msgpack.encode([1.0]), b"\x80"]
)
def test_what_is_no_batch_is_malformed(frame: bytes) -> None:
    with pytest.raises(MalformedEventError):
        vllm.decode(frame)


@given(st.sampled_from(sorted(VECTORS)), st.data())
def test_a_damaged_vector_gives_events_or_the_one_error(name: str, data: st.DataObject) -> None:
    raw = bytearray(payload(name))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(raw)))
    for frame in (bytes(raw), bytes(raw[:cut])):
        with contextlib.suppress(MalformedEventError):
            vllm.decode(frame)


def test_a_block_whose_hash_covers_the_next_token_has_it_in_its_extra() -> None:
    [event, *_] = vllm.decode(payload("v0.33.0-lookahead")).events
    assert isinstance(event, Stored)
    assert event.lookahead == 1
    assert event.extras == (next_token(5), next_token(9))


@pytest.mark.parametrize("ahead", [[[5]], [[5], []], [[5], [-1]]])
def test_next_tokens_that_are_not_those_of_the_blocks_make_an_event_unreadable(
    ahead: list[list[int]],
) -> None:
    event = stored([1, 2], [1, 2, 3, 4], None, 2, lookahead_token_ids=ahead)
    batch = decoded(event)
    assert not batch.events
    assert batch.unread[0].is_store


def test_a_group_that_no_engine_counts_to_costs_its_event_only() -> None:
    batch = decoded(STORE, STORE | {"group_idx": 256})
    assert len(batch.events) == 1
    assert [one.reason for one in batch.unread] == ["group_idx is 256; it must be 255 or less"]
