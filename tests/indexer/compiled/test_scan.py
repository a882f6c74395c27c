"""The compiled scanner reads nothing that the pure codec would read otherwise."""

import json
from dataclasses import replace
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.indexer import sides
from tests.recordings import SGLANG_EVENTS, VLLM_EVENTS
from warmpath.indexer.compiled.scan.dialect import DIALECTS, REMOVED, STORED
from warmpath.indexer.compiled.scan.scan import scan
from warmpath.indexer.compiled.scan.scanned import (
    ANOTHER,
    GROUP,
    HAS_PAIRS,
    HAS_PARENT,
    KIND,
    LORA,
    LORA_AT,
    NAMES,
    NAMES_AT,
    SALT,
    SALT_AT,
    SIZE,
    TIER,
    TOKENS,
    TOKENS_AT,
    room,
)
from warmpath.indexer.engines import sglang, vllm
from warmpath.indexer.engines.event import Event, MalformedEventError, Removed, Stored, Tier
from warmpath.indexer.keys.key import next_token

CODECS: dict[str, ModuleType] = {"vllm": vllm, "sglang": sglang}
TIERS = list(Tier)
ANY_NUMBER = "an adapter's number"


def scanned(engine: str, *payloads: bytes) -> list[list[Event]]:
    """Return the events of the batches that are plain, up to the first that is not."""
    data = np.frombuffer(b"".join(payloads), np.uint8)
    # Exactly as large as what is promised to suffice.
    arrays = room(len(data))._replace(data=data)
    ends = np.cumsum([len(payload) for payload in payloads], dtype=np.int64)
    events = np.zeros(len(payloads), np.int64)
    count = scan(ends, DIALECTS[engine], arrays, events)
    found: list[list[Event]] = []
    first = 0
    for last in events[:count].tolist():
        found.append([_event(arrays, number) for number in range(first, last)])
        first = last
    return found


def _event(arrays: Any, number: int) -> Event:
    row = arrays.events[number]
    names = tuple(arrays.names[row[NAMES_AT] : row[NAMES_AT] + row[NAMES]].tolist())
    tier = TIERS[row[TIER]]
    group, size = int(row[GROUP]), int(row[SIZE])
    if row[KIND] == REMOVED:
        return Removed(names, tier, group)
    assert row[KIND] == STORED
    begin, end = row[TOKENS_AT], row[TOKENS_AT] + row[NAMES] * size
    is_whole = row[TOKENS] >= 0
    extras = None
    if row[HAS_PAIRS] and is_whole:
        extras = tuple(map(next_token, arrays.seconds[begin:end][size - 1 :: size].tolist()))
    return Stored(
        names,
        int(arrays.parents[number]) if row[HAS_PARENT] else None,
        arrays.tokens[begin:end].tobytes() if is_whole else None,
        size,
        tier,
        lora=ANY_NUMBER if row[LORA] == ANOTHER else _text(arrays, row[LORA_AT], row[LORA]),
        cache_salt=_text(arrays, row[SALT_AT], row[SALT]),
        extras=extras,
        group=group,
    )


def _text(arrays: Any, at: int, length: int) -> str:
    return str(arrays.data[at : at + length].tobytes().decode()) if length else ""


def decoded(engine: str, payload: bytes) -> list[Event] | None:
    try:
        batch = CODECS[engine].decode(payload)
    except MalformedEventError:
        return None
    # What a plain event says nothing of, the resolver learns elsewhere.
    return [_bare(event) for event in batch.events]


def _bare(event: Event) -> Event:
    if isinstance(event, Stored):
        is_number = event.lora.startswith("\x00lora-id:")
        return replace(
            event,
            lora=ANY_NUMBER if is_number else event.lora,
            kind="",
            window=0,
            lookahead=0,
            once=False,
        )
    return event


def agrees(engine: str, payload: bytes) -> bool:
    """Whether a payload is plain; then it must be what the codec decodes."""
    found = scanned(engine, payload)
    if not found:
        return False
    batch = CODECS[engine].decode(payload)
    assert not batch.unread
    assert found == [decoded(engine, payload)]
    return True


def stored(**changes: object) -> sides.Event:
    tokens = [0, 127, 128, 255, 256, 65535, 65536, (1 << 32) - 1]
    return sides.stored([1 << 63, -5], tokens, 7, 4) | changes


def batch(*events: object, rest: tuple[object, ...] = (0,)) -> bytes:
    return msgspec.msgpack.encode([1.5, list(events), *rest])


def test_a_store_as_maps_and_as_arrays_write_it_is_plain() -> None:
    event = stored()
    assert agrees("vllm", batch(event))
    assert agrees("sglang", batch(event))
    assert agrees("vllm", batch(list(stored(type="BlockStored").values())))
    assert agrees("sglang", batch(list(event.values())[:7]))


PLAIN: dict[str, list[dict[str, object]]] = {
    "vllm": [
        {"parent_block_hash": None}, {"medium": None}, {"medium": "CPU"}, {"medium": "cpu_pinned"},
        {"extra_keys": None}, {"extra_keys": []}, {"extra_keys": [None, None]}, {"group_idx": 0},
        {"kv_cache_spec_kind": "full_attention"}, {"kv_cache_spec_sliding_window": None},
        {"locality": "local"}, {"unknown": [1, "x", None, True, 2.5]},
        {"group_idx": 3, "kv_cache_spec_kind": "mamba"}, {"kv_cache_spec_kind": "new"},
        {"token_ids": [1]}, {"token_ids": []}, {"block_size": 0}, {"token_ids": [], "block_size": 0},
        {"block_hashes": []}, {"block_hashes": [], "token_ids": []}, {"lora_id": 1},
        {"lora_name": "a", "lora_id": 1}, {"lora_name": ""}, {"extra_keys": [[], None]},
        {"lora_name": "a", "extra_keys": [["a"], ["a"]]}, {"lora_name": "a", "extra_keys": [None, ["a"]]},
        {"parent_block_hash": None, "extra_keys": [["salt"], None]},
        {"parent_block_hash": None, "lora_name": "a", "extra_keys": [["a", "salt"], ["a"]]},
        {"parent_block_hash": None, "lora_name": "a", "extra_keys": [["a", "a"], ["a"]]},
        {"parent_block_hash": None, "lora_name": "a", "extra_keys": [["salt"], []]},
        {"token_ids": [1], "extra_keys": [[1], ["x", "y"], None]},
        {"block_hashes": [b"x", 7]}, {"block_hashes": [bytes(range(32)), b""]},
        {"parent_block_hash": bytes(16)},
        {"block_hashes": [bytes(range(255)), bytes(300)], "parent_block_hash": bytes(77)},
        {"lookahead_token_ids": [[5], [(1 << 32) - 1]]}, {"lookahead_token_ids": None},
        {"token_ids": [1], "lookahead_token_ids": [[5], [6]]},
        {"lookahead_token_ids": [[5], [6]], "lora_name": "a", "extra_keys": [["a"], ["a"]]},
    ],
    "sglang": [
        {"token_ids": [[token, 1 << 31] for token in range(8)]}, {"cache_salt": "salt"},
        {"lora_name": "a"}, {"lora_name": "a", "parent_block_hash": None, "cache_salt": "s"},
        {"token_ids": [[1, (1 << 32) - 1]] * 8, "lora_name": "a", "parent_block_hash": None},
    ],
}  # fmt: skip
"""What engines usually add."""
ODD: dict[str, list[dict[str, object]]] = {
    "vllm": [
        {"block_hashes": ["x", "y"]}, {"parent_block_hash": "x"},
        {"block_size": -4}, {"block_size": 4.0}, {"lora_name": "\u00e9"}, {"lora_name": 5},
        {"extra_keys": [["salt"], None]}, {"group_idx": -1}, {"group_idx": 1 << 31},
        {"medium": "tape"}, {"token_ids": [-1] * 8}, {"token_ids": [[1, 2]] * 8},
        {"token_ids": [1 << 32] * 8}, {"lora_name": "a", "extra_keys": [["a"]]},
        {"lora_name": "a", "extra_keys": [["a"], ["b"]]}, {"lora_name": "a", "extra_keys": ["a", "a"]},
        {"parent_block_hash": None, "extra_keys": [["x", "y"], None]},
        {"parent_block_hash": None, "extra_keys": [None, ["x"]]},
        {"parent_block_hash": None, "extra_keys": [[b"x"], None]},
        {"parent_block_hash": None, "extra_keys": [[["item", 3]], None]},
        {"parent_block_hash": None, "lora_name": "ab", "extra_keys": [["a", "b"], None]},
        {"unknown": {"a": 1}}, {"unknown": [[]]}, {"unknown": "\u00e9"}, {"locality": 3},
        {"lookahead_token_ids": [[5, 6], [7, 8]]}, {"lookahead_token_ids": [[5], [6, 7]]},
    ],
    "sglang": [
        {"token_ids": [1, 2, 3]}, {"token_ids": [[1, 2]] * 7}, {"token_ids": [[1, 2, 3]] * 8},
        {"token_ids": [*[[1, 2]] * 7, 3]}, {"token_ids": [3, *[[1, 2]] * 7]}, {"block_size": 0},
        {"token_ids": [[1, -2]] * 8}, {"cache_salt": {"cache_salt": "s"}}, {"token_ids": [[1]] * 8},
    ],
}  # fmt: skip
"""What needs thought."""


def changes(of: dict[str, list[dict[str, object]]]) -> list[tuple[str, dict[str, object]]]:
    return [(engine, change) for engine, some in of.items() for change in some]


@pytest.mark.parametrize(("engine", "change"), changes(PLAIN))
def test_what_engines_usually_add_is_plain(engine: str, change: dict[str, object]) -> None:
    assert agrees(engine, batch(stored(**change)))


@pytest.mark.parametrize(("engine", "change"), changes(ODD))
def test_what_needs_thought_is_left_to_the_codec(engine: str, change: dict[str, object]) -> None:
    # What the codec finds malformed is not plain either.
    assert not scanned(engine, batch(stored(**change)))


def test_removals_are_plain_and_clears_are_not() -> None:
    removed = {"type": "BlockRemoved", "block_hashes": [1, 2, 3], "medium": "GPU"}
    assert agrees("vllm", batch(removed, stored(), rest=()))
    assert agrees("vllm", batch(["BlockRemoved", [4], None]))
    assert not agrees("vllm", batch(removed, {"type": "AllBlocksCleared"}))
    assert not agrees("vllm", batch(removed, {"type": "News"}))


def test_batches_are_scanned_up_to_the_first_that_is_not_plain() -> None:
    plain, other = batch(stored()), batch({"type": "AllBlocksCleared"})
    assert len(scanned("vllm", plain, plain, other, plain)) == 2


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_every_recorded_batch_reads_the_same(engine: str) -> None:
    plain = 0
    for path in (VLLM_EVENTS, SGLANG_EVENTS):
        for vector in json.loads(path.read_text())["vectors"]:
            if "payload_hex" in vector and vector.get("engine", "vllm").startswith(engine):
                try:
                    plain += agrees(engine, bytes.fromhex(vector["payload_hex"]))
                except MalformedEventError:
                    pytest.fail(f"{vector} is plain and malformed")
    assert plain or engine == "sglang"


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats()
    | st.text(max_size=6) | st.binary(max_size=6)
    | st.sampled_from(["GPU", "CPU", "BlockStored", "full_attention"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
NAME = (
    st.integers(-(1 << 63), (1 << 64) - 1)
    | st.binary(max_size=80)
    | st.binary(min_size=32, max_size=32)
)
NAMES_OF = st.lists(NAME, min_size=1, max_size=3)


@st.composite
def events(draw: st.DrawFn) -> object:
    """Return an event that is nearly plain."""
    names = draw(NAMES_OF)
    size = draw(st.integers(1, 3))
    count = max(0, len(names) * size + draw(st.sampled_from([0, 0, 0, 0, 1, -1])))
    token: st.SearchStrategy[object] = st.integers(0, (1 << 32) - 1)
    if draw(st.sampled_from([False, False, True])):
        token = st.tuples(token, token)
    lora = draw(st.sampled_from([None, None, "a", "ab", ""]))
    key = st.sampled_from([None, [], ["a"], ["s"], ["a", "s"], ["a", "a"], ["ab"], [1], [["m", 1]]])
    event = stored(
        block_hashes=names,
        parent_block_hash=draw(st.none() | NAME),
        token_ids=draw(st.lists(token, min_size=count, max_size=count)),
        block_size=size,
        lora_name=lora,
    )
    if draw(st.booleans()):
        event["extra_keys"] = draw(st.lists(key, min_size=len(names), max_size=len(names)))
    if draw(st.sampled_from([False, False, True])):
        ahead = draw(st.sampled_from([1, 1, 1, 1, 0, 2]))
        token = st.integers(0, 1 << 32 if ahead else 9)
        some = st.lists(token, min_size=ahead, max_size=ahead)
        many = len(names) + draw(st.sampled_from([0, 0, 0, 0, 1, -1]))
        event["lookahead_token_ids"] = draw(st.lists(some, min_size=many, max_size=many))
    if draw(st.booleans()):
        event["group_idx"] = draw(st.integers(0, 3))
    if draw(st.booleans()):
        event = {"type": "BlockRemoved", "block_hashes": names, "medium": None}
    fields = [*event, "group_idx", "extra_keys", "kv_cache_spec_kind", "cache_salt", "type", "x"]
    for field in draw(st.lists(st.sampled_from(fields), max_size=2)):
        event[field] = draw(ANYTHING)
    if draw(st.booleans()):
        event["type"] = event.pop("type")  # at the end, where no engine writes it
    return list(event.values()) if draw(st.booleans()) else event


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@settings(max_examples=examples(1000))
@given(
    some=st.lists(events(), max_size=3),
    rest=st.lists(ANYTHING, max_size=2),
    cut=st.integers(0, 400),
    flips=st.lists(st.tuples(st.integers(0, 400), st.integers(1, 255)), max_size=2),
)
def test_whatever_is_plain_is_what_the_codec_decodes(
    engine: str, some: list[object], rest: list[object], cut: int, flips: list[tuple[int, int]]
) -> None:
    payload = bytearray(msgspec.msgpack.encode([0.5, some, *rest]))
    agrees(engine, bytes(payload))
    for at, bits in flips:
        payload[at % len(payload)] ^= bits
    agrees(engine, bytes(payload))
    agrees(engine, bytes(payload[: cut % (len(payload) + 1)]))
