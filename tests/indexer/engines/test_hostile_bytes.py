"""Whatever bytes arrive: events, or the one documented error."""

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpath.indexer.engines import sglang, trtllm, vllm
from warmpath.indexer.engines.event import Batch, MalformedEventError


def trtllm_decode(payload: bytes) -> Batch:
    codec = trtllm.Codec(2)
    events = [event for one in trtllm.split(payload) for event in codec(one).events]
    return Batch(0.0, tuple(events))


CODECS: list[Callable[[bytes], Batch]] = [vllm.decode, sglang.decode, trtllm_decode]
HOSTILE = {
    "an array of four billion": b"\xdd\xff\xff\xff\xff",
    "a batch of four billion events": b"\x92\xcb" + bytes(8) + b"\xdd\xff\xff\xff\xff",
    "a map of four billion": b"\xdf\xff\xff\xff\xff",
    "bytes of four gigabytes": b"\xc6\xff\xff\xff\xff",
    "nested a hundred thousand deep": b"\x92\x00" + b"\x91" * 100_000,
    "nested maps": b"\x92\x00" + b"\x81\x00" * 100_000,
    "an array as a key": b"\x92\x00\x91\x81\x90\x00",
    "an extension": b"\x92\x00\x91\xc7\x04\x63abcd",
    "no UTF-8": b"\x92\x00\x91\x91\xa2\xff\xfe",
    "not a number as the time": b"\x92\xcb\x7f\xf8" + bytes(6) + b"\x90",
    "JSON nested deep": b"[" * 100_000,
    "JSON with a number of a million digits": b"[" + b"1" * 1_000_000 + b"]",
    "JSON of a huge exponent": b'[{"event_id":1e999999,"data":{}}]',
    "JSON that repeats a key": b'[{"event_id":1,"event_id":2,"data":{"type":"removed"}}]',
}


@pytest.mark.parametrize("decode", CODECS, ids=["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("payload", HOSTILE.values(), ids=HOSTILE)
def test_hostile_bytes_are_refused_as_documented(
    decode: Callable[[bytes], Batch], payload: bytes
) -> None:
    with suppress(MalformedEventError):
        assert not decode(payload).events


ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text(max_size=8)
    | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=6), inner, max_size=5),
    max_leaves=20,
)  # fmt: skip
FIELDS = (
    "type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium",
    "lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind", "cache_salt",
)  # fmt: skip


@pytest.mark.parametrize("decode", [vllm.decode, sglang.decode], ids=["vllm", "sglang"])
@given(
    event=st.dictionaries(st.sampled_from(FIELDS), ANY),
    tag=st.sampled_from(["BlockStored", "BlockRemoved"]),
)
def test_fields_of_any_type_are_events_or_the_error(
    decode: Callable[[bytes], Batch], event: dict[str, Any], tag: str
) -> None:
    needed = {"block_hashes": [1], "parent_block_hash": None, "token_ids": [1], "block_size": 1}
    whole = needed | event
    for form in (whole | {"type": tag}, [tag, *whole.values()]):
        with suppress(MalformedEventError):
            decode(msgspec.msgpack.encode([0.0, [form], 0]))


@given(
    data=st.dictionaries(
        st.sampled_from(
            ["type", "parent_hash", "blocks", "block_hashes", "cache_level", "block_hash"]
        ),
        ANY,
    ),
    kind=st.sampled_from(["created", "stored", "removed", "updated"]),
)
def test_trtllm_fields_of_any_type_are_events_or_the_error(data: dict[str, Any], kind: str) -> None:
    event = {"event_id": 0, "data": data | {"type": kind}, "window_size": 1}
    with suppress(MalformedEventError):
        trtllm_decode(json.dumps([event], default=repr).encode())


@pytest.mark.parametrize("decode", CODECS, ids=["vllm", "sglang", "trtllm"])
@given(payload=st.binary(max_size=200))
def test_any_bytes_are_events_or_the_error(
    decode: Callable[[bytes], Batch], payload: bytes
) -> None:
    with suppress(MalformedEventError):
        decode(payload)
