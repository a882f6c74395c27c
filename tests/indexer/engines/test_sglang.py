"""SGLang's codec against the bytes that real versions of SGLang made."""

import json
from typing import Any

import msgspec
import pytest

from tests.indexer import sides
from tests.recordings import SGLANG_EVENTS
from warmpath.indexer.engines import sglang
from warmpath.indexer.engines.event import Cleared, Removed, Stored, Tier
from warmpath.indexer.engines.wire import decode_batch
from warmpath.indexer.keys.key import next_token, pack_tokens

FILE = json.loads(SGLANG_EVENTS.read_text())
VECTORS = {vector["name"]: vector for vector in FILE["vectors"]}


def payload(name: str) -> bytes:
    return bytes.fromhex(VECTORS[name]["payload_hex"])


@pytest.mark.parametrize("name", VECTORS)
def test_every_vector_decodes_to_what_it_states(name: str) -> None:
    stated = VECTORS[name]["decoded"]
    wire = decode_batch(payload(name), sglang.READERS)
    assert wire.ts == stated["ts"]
    assert wire.data_parallel_rank == stated["data_parallel_rank"]
    assert len(wire.events) == len(stated["events"])
    for event, expected in zip(wire.events, stated["events"], strict=True):
        fields = {"type": type(event).__name__, **msgspec.to_builtins(event)}
        # Fields that a version does not have are not stated.
        assert {key: fields[key] for key in expected} == expected
        assert all(fields[key] is None for key in fields.keys() - expected.keys())


@pytest.mark.parametrize("name", VECTORS)
def test_every_vector_becomes_neutral_events(name: str) -> None:
    wire, batch = decode_batch(payload(name), sglang.READERS), sglang.decode(payload(name))
    for raw, event in zip(wire.events, batch.events, strict=True):
        if isinstance(raw, sglang.BlockStored):
            assert isinstance(event, Stored)
            assert event.tokens == pack_tokens(raw.token_ids)  # type: ignore[arg-type]
            assert all(0 <= name < 1 << 64 for name in event.hashes if isinstance(name, int))
            assert event.tier is (Tier.CPU if raw.medium == "CPU_PINNED" else Tier.GPU)
            assert (event.lora, event.cache_salt) == (raw.lora_name or "", raw.cache_salt or "")
        elif isinstance(raw, sglang.BlockRemoved):
            assert isinstance(event, Removed)
        else:
            assert event == Cleared()


def stored(**changes: Any) -> bytes:
    event = sides.stored([-1], [1, 2], None, 2) | changes
    return msgspec.msgpack.encode([0.0, [event], 0])


def test_a_page_of_pairs_names_the_token_after_it() -> None:
    [event] = sglang.decode(
        stored(block_hashes=[1, 2], token_ids=[[1, 2], [2, 3], [3, 4], [4, 5]])
    ).events
    assert isinstance(event, Stored)
    assert event.tokens == pack_tokens([1, 2, 3, 4])
    assert event.extras == (next_token(3), next_token(5))
    assert event.lookahead


@pytest.mark.parametrize(
    "bad",
    [
        {"block_size": 0},
        {"token_ids": [1, 2, 3]},
        {"token_ids": [1, [2, 3]]},
        {"token_ids": [-1, 2]},
        {"token_ids": [[1, 1 << 32], [2, 3]], "block_size": 1, "block_hashes": [1, 2]},
        {"cache_salt": 7},
        {"lora_name": []},
    ],
    ids=str,
)
def test_an_event_with_a_wrong_field_is_not_read(bad: dict[str, Any]) -> None:
    batch = sglang.decode(stored(**bad))
    assert batch.events == ()
    [unread] = batch.unread
    assert unread.is_store


def salted(metadata: Any) -> bytes:
    """Return a store as 0.5.18 writes it of a salted page: an array with an eighth element."""
    event = ["BlockStored", [1], None, [1, 2], 2, None, "GPU", metadata]
    return msgspec.msgpack.encode([0.0, [event], 0])


def test_the_salt_in_the_eighth_element_of_an_array_is_read() -> None:
    [event] = sglang.decode(salted({"cache_salt": "tenant-a"})).events
    assert isinstance(event, Stored)
    assert event.cache_salt == "tenant-a"


@pytest.mark.parametrize("metadata", [{}, {"salt": "x"}, {"cache_salt": 1}, ["x"], 1], ids=str)
def test_an_eighth_element_of_another_form_is_malformed_rather_than_guessed(metadata: Any) -> None:
    batch = sglang.decode(salted(metadata))
    assert batch.events == ()
    assert len(batch.unread) == 1


def test_a_field_in_a_later_position_is_no_salt() -> None:
    event = ["BlockStored", [1], None, [1, 2], 2, None, "GPU", None, "session", "support"]
    [found] = sglang.decode(msgspec.msgpack.encode([0.0, [event], 0])).events
    assert isinstance(found, Stored)
    assert (found.cache_salt, found.lora) == ("", "support")
