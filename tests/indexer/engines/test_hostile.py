"""Whatever bytes arrive or values are given: events, or the one documented error."""

import doctest
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpath.indexer.engines import event, sglang, trtllm, vllm
from warmpath.indexer.engines.event import (
    Batch,
    Cleared,
    Event,
    MalformedEventError,
    Moved,
    Removed,
    Stored,
    Tier,
    name_of,
)
from warmpath.indexer.engines.vllm import BlockStored
from warmpath.indexer.keys.key import pack_tokens
from warmpath.library.check_events import check_events


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


# Events that a caller made: every field is checked before any event is applied

STORED = Stored.of([1, 2], range(8), block_size=4, parent=b"digest", tier="cpu", lora="a")
SAID = BlockStored([1], None, [1], 1)


def test_values_of_any_form_become_those_that_a_codec_makes() -> None:
    assert (
        Stored((1, 2), name_of(b"digest"), pack_tokens(range(8)), 4, tier=Tier.CPU, lora="a")
        == STORED
    )
    assert Removed.of([-1, b"x"]) == Removed(((1 << 64) - 1, name_of(b"x")))
    assert Moved.of(1, source="gpu", target="disk") == Moved(1, Tier.GPU, Tier.DISK)
    assert not doctest.testmod(event).failed


def test_what_a_codec_can_make_is_accepted() -> None:
    check_events(
        [
            STORED,
            replace(STORED, tokens=None, block_size=0),
            replace(STORED, extras=(b"x", None)),
            Removed((1,)),
            Removed((), tier=None),
            Moved(1, Tier.GPU, Tier.CPU),
            Cleared(),
        ]
    )


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        (replace(STORED, hashes=(1, 1 << 64)), r"hashes holds a number that is not 0 to 2\^64 - 1"),
        (replace(STORED, hashes=(1, -1)), r"hashes holds a number that is not 0 to 2\^64 - 1"),
        (replace(STORED, hashes=[1, 2]), "hashes holds something else than integers in a tuple"),
        (replace(STORED, hashes=(1, True)), "hashes holds something else than integers"),
        (replace(STORED, parent="a"), "parent holds something else than integers"),
        (replace(STORED, tokens=list(range(8))), "tokens are not bytes; Stored.of packs integers"),
        (replace(STORED, tokens=b"\0" * 28), "tokens are 7; 2 blocks of 4 have 8"),
        (replace(STORED, block_size=0), "block_size is 0; it must be 1 to 1048576"),
        (replace(STORED, block_size=1 << 21), "block_size is 2097152; it must be 1 to 1048576"),
        (replace(STORED, block_size=4.0), "block_size is 4.0; it must be 1 to 1048576"),
        (replace(STORED, tier="gpu"), "tier is 'gpu'; it must be one of gpu, cpu, disk, remote"),
        (replace(STORED, lora=None), "lora is not a string"),
        (replace(STORED, extras=(b"x",)), "extras are 1; the blocks are 2"),
        (replace(STORED, extras=(b"x", "y")), "extras has an entry that is neither bytes nor None"),
        (replace(STORED, group=-1), "group is -1; it must be 0 to 2147483647"),
        (replace(STORED, window=1 << 31), "window is 2147483648; it must be 0 to 2147483647"),
        (Removed((1,), tier="gpu"), "tier is 'gpu'"),  # type: ignore[arg-type]
        (Removed((1,), group=1 << 31), "group is 2147483648"),
        (Moved(-1, Tier.GPU, Tier.CPU), "hash holds a number"),
        (Moved(1, "gpu", Tier.CPU), "source is 'gpu'"),  # type: ignore[arg-type]
        (SAID, "kind is BlockStored; it must be Stored, Removed, Moved or Cleared"),
    ],
)
def test_a_value_that_could_not_be_applied_is_refused_by_name(event: Event, problem: str) -> None:
    with pytest.raises(MalformedEventError, match=rf"events\[1\]\.{problem}"):
        check_events([Cleared(), event])


def test_a_tier_or_token_that_does_not_exist_is_refused_at_once() -> None:
    with pytest.raises(
        ValueError, match="tier is 'vram'; it must be one of gpu, cpu, disk, remote"
    ):
        Stored.of([1], [1], block_size=1, tier="vram")
    with pytest.raises(ValueError, match="target is 'x'"):
        Moved.of(1, source="gpu", target="x")
    with pytest.raises(ValueError, match="a token id must be an unsigned 32-bit integer"):
        Stored.of([1], [-1], block_size=1)
