"""The dialects, byte for byte as the engines encode, and events of an engine that keeps a block once."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.recordings import SGLANG_EVENTS, VLLM_EVENTS
from warmpath.indexer.engines import sglang, vllm
from warmpath.indexer.engines.wire import decode_batch
from warmpath.lab.simworker.events.dialect import UnknownDialectError, dialect_named
from warmpath.lab.simworker.events.from_v1 import KeptOnce
from warmpath.lab.simworker.events.sglang import SglangDialect
from warmpath.lab.simworker.events.vllm import VllmDialect
from warmpath.lab.simworker.events.wire_event import CPU, Cleared, Removed, Stored, WireEvent

MASK = (1 << 64) - 1


def vectors(path: Path) -> list[dict[str, Any]]:
    return list(json.loads(path.read_text())["vectors"])


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        if "$bytes" in value:
            return bytes.fromhex(value["$bytes"])
        return {name: plain(one) for name, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list) else value


def has_bytes(vector: dict[str, Any]) -> bool:
    return any(
        isinstance(name, dict)
        for event in vector["decoded"]["events"]
        for name in event.get("block_hashes") or ()
    )


def vllm_digest(name: int | bytes) -> bytes:
    """Return a digest that goes out as this name."""
    return name if isinstance(name, bytes) else bytes(24) + (name & MASK).to_bytes(8, "big")


def sglang_digest(name: int) -> bytes:
    return (name & MASK).to_bytes(8, "big") + bytes(24)


def event(fields: dict[str, Any], digest: Any, *, salted: bool = False) -> WireEvent:
    fields = plain(fields)
    kind = fields.pop("type")
    if kind == "AllBlocksCleared":
        return Cleared()
    salt = fields.pop("cache_salt", None)
    fields["block_hashes"] = [digest(name) for name in fields["block_hashes"]]
    if kind == "BlockRemoved":
        return Removed(**{name: value for name, value in fields.items() if name in REMOVED})
    if fields["parent_block_hash"] is not None:
        fields["parent_block_hash"] = digest(fields["parent_block_hash"])
    if salted and salt is not None:
        fields["extra_keys"] = [[salt]]
    return Stored(**{name: value for name, value in fields.items() if name in STORED})


STORED = set(Stored.__dataclass_fields__)
REMOVED = set(Removed.__dataclass_fields__)


def version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


VLLM = [
    vector
    for vector in vectors(VLLM_EVENTS)
    # Negative names are of hashes that Python's own `hash` made, and ours are not.
    # The workers' newest dialect is 0.32's.
    if "negative" not in vector["name"] and vector["version"] != "0.33.0"
]


@pytest.mark.parametrize("vector", VLLM, ids=[vector["name"] for vector in VLLM])
def test_vllm_batches_are_the_engines_own_bytes(vector: dict[str, Any]) -> None:
    dialect = VllmDialect(version(vector["version"]), has_bytes(vector))
    decoded = vector["decoded"]
    events = [event(one, vllm_digest) for one in decoded["events"]]
    rank = decoded["data_parallel_rank"]
    assert dialect.batch(decoded["ts"], events, rank).hex() == vector["payload_hex"]


def expressible(vector: dict[str, Any]) -> bool:
    """Tell whether ours would say it as one event, and the version's names have parents.

    Before 0.5.23 every page is an event of its own; lora_id is always nil in SGLang's own cache;
    and the salt of pages deep in a sequence is not known to us.
    """
    events = vector["decoded"]["events"]
    pages = max((len(one.get("block_hashes") or ()) for one in events), default=0)
    runs = version(vector["version"]) >= (0, 5, 23)
    return (
        version(vector["version"]) >= (0, 5, 6)
        and (pages < 2 or runs)
        and not any(one.get("lora_id") is not None for one in events)
        and not any(one.get("cache_salt") and one.get("parent_block_hash") for one in events)
    )


SGLANG = [vector for vector in vectors(SGLANG_EVENTS) if expressible(vector)]


@pytest.mark.parametrize("vector", SGLANG, ids=[vector["name"] for vector in SGLANG])
def test_sglang_batches_are_the_engines_own_bytes(vector: dict[str, Any]) -> None:
    dialect = SglangDialect(version(vector["version"]))
    decoded = vector["decoded"]
    events: list[WireEvent] = []
    for one in decoded["events"]:
        told = event(one, sglang_digest, salted=True)
        if one.get("medium") == "CPU_PINNED":
            # Ours come from vLLM's cache, which calls it so.
            assert isinstance(told, Stored | Removed)
            object.__setattr__(told, "medium", "CPU")
        events.append(told)
    rank = decoded["data_parallel_rank"]
    assert dialect.batch(decoded["ts"], events, rank).hex() == vector["payload_hex"]


def test_enough_of_the_recorded_batches_are_compared() -> None:
    assert len(VLLM) > 90
    assert len(SGLANG) > 25
    assert {version(vector["version"]) for vector in SGLANG} >= {(0, 5, 8), (0, 5, 16), (0, 5, 23)}


FIRST = bytes(range(32))
SECOND = bytes(range(100, 132))
TWO_PAGES = Stored([FIRST, SECOND], None, [1, 2, 3, 4], 2, extra_keys=[["salt"], None], group_idx=0)


@pytest.mark.parametrize("name", ["sglang-0.5.9", "sglang-0.5.22"])
def test_older_sglang_says_every_page_and_removal_by_itself(name: str) -> None:
    events = [TWO_PAGES, Removed([FIRST, SECOND])]
    batch = decode_batch(dialect_named(name).batch(1.0, events, 0), sglang.READERS)
    assert [type(one).__name__ for one in batch.events] == ["BlockStored"] * 2 + [
        "BlockRemoved"
    ] * 2
    first, second = batch.events[:2]
    assert isinstance(first, sglang.BlockStored)
    assert isinstance(second, sglang.BlockStored)
    assert first.parent_block_hash is None
    assert second.parent_block_hash == int.from_bytes(FIRST[:8], "big", signed=True)
    assert (first.token_ids, second.token_ids) == ([1, 2], [3, 4])


def test_newer_sglang_joins_neighbours_that_go_on_from_each_other() -> None:
    child = Stored([bytes(32)], SECOND, [5, 6], 2, extra_keys=[None], group_idx=0)
    stranger = Stored([bytes([7] * 32)], None, [8, 9], 2, extra_keys=[None], group_idx=0)
    removed = [Removed([FIRST]), Removed([SECOND]), Removed([SECOND], "CPU")]
    payload = dialect_named("sglang").batch(1.0, [TWO_PAGES, child, stranger, *removed], 0)
    events = decode_batch(payload, sglang.READERS).events
    sizes = [
        len(one.block_hashes)
        for one in events
        if isinstance(one, sglang.BlockStored | sglang.BlockRemoved)
    ]
    assert sizes == [3, 1, 2, 1]


def test_sglang_says_the_salt_where_a_sequence_begins() -> None:
    [stored] = sglang.decode(dialect_named("sglang").batch(1.0, [TWO_PAGES], 0)).events
    assert getattr(stored, "cache_salt", None) == "salt"


def test_what_sglang_has_not_is_left_out() -> None:
    events = [
        Stored([FIRST], None, [], 0, medium="CPU"),
        Stored([FIRST], None, [1, 2], 2, group_idx=1),
        Removed([FIRST], group_idx=1),
    ]
    assert sglang.decode(dialect_named("sglang").batch(1.0, events, 0)).events == ()


@pytest.mark.parametrize("name", ["vllm-0.9.2", "vllm-0.23", "vllm-0.24.0", "vllm"])
def test_every_layout_is_read_back_by_our_codec(name: str) -> None:
    [stored, removed, _] = vllm.decode(
        dialect_named(name).batch(1.0, [TWO_PAGES, Removed([FIRST]), Cleared()], 3)
    ).events
    assert getattr(stored, "hashes", ()) == tuple(
        int.from_bytes(digest[-8:], "big") for digest in (FIRST, SECOND)
    )
    assert getattr(removed, "hashes", ()) == (int.from_bytes(FIRST[-8:], "big"),)


@pytest.mark.parametrize(
    ("name", "engine", "told", "topic"),
    [
        ("vllm", "vllm", "0.32.0", True),
        ("vllm-0.25", "vllm", "0.25.0", False),
        ("vllm-0.9.0.1", "vllm", "0.9.0.1", False),
        ("sglang", "sglang", "0.5.23", True),
        ("sglang-0.5.20", "sglang", "0.5.20", False),
    ],
)
def test_a_dialect_is_an_engine_and_a_version(
    name: str, engine: str, told: str, topic: bool
) -> None:
    dialect = dialect_named(name)
    assert (dialect.engine, dialect.version, dialect.replays_topic) == (engine, told, topic)


@pytest.mark.parametrize(
    ("name", "byte_hashes", "message"),
    [
        ("tgi", False, "'tgi' is not a dialect; the dialects are vllm"),
        ("vllm-", False, "is not a dialect"),
        ("vllm-0.8", False, "from 0.9.0 to 0.32.0"),
        ("vllm-0.33", False, "from 0.9.0 to 0.32.0"),
        ("vllm-0.10.1", True, "no hashes as bytes"),
        ("sglang-0.5.5", False, "from 0.5.6 to 0.5.23"),
        ("sglang-0.5.18", False, "except 0.5.18"),
        ("sglang", True, "no hashes as bytes"),
    ],
)
def test_what_is_not_known_is_refused(name: str, byte_hashes: bool, message: str) -> None:
    with pytest.raises(UnknownDialectError, match=message):
        dialect_named(name, byte_hashes=byte_hashes)


def test_only_sglang_begins_a_life_with_a_clear() -> None:
    assert dialect_named("sglang").opening == (Cleared(),)
    assert dialect_named("vllm").opening == ()


def stored(first: int, stop: int, medium: str = "GPU") -> Stored:
    """Return a store of the blocks `first` to `stop` of one chain, two tokens each."""
    return Stored(
        [bytes([number]) for number in range(first, stop)],
        bytes([first - 1]) if first else None,
        [token for number in range(first, stop) for token in (number, number)],
        2,
        medium=medium,
        extra_keys=[[str(number)] for number in range(first, stop)],
    )


def removed(*numbers: int, medium: str = "GPU") -> Removed:
    return Removed([bytes([number]) for number in numbers], medium=medium)


def test_a_second_copy_is_told_neither_when_it_comes_nor_when_it_goes() -> None:
    once = KeptOnce()
    assert once.announced([stored(0, 2)]) == [stored(0, 2)]
    assert once.announced([stored(1, 2), removed(1)]) == []
    assert once.announced([removed(1, 0)]) == [removed(1, 0)]


def test_what_is_new_of_a_store_keeps_its_parents_tokens_and_extra_keys() -> None:
    once = KeptOnce()
    once.announced([stored(1, 2), stored(3, 4)])
    assert once.announced([stored(0, 6)]) == [stored(0, 1), stored(2, 3), stored(4, 6)]


def test_each_medium_has_copies_of_its_own_and_a_clear_ends_all() -> None:
    once = KeptOnce()
    assert once.announced([stored(0, 1), stored(0, 1, CPU)]) == [stored(0, 1), stored(0, 1, CPU)]
    assert once.announced([removed(0)]) == [removed(0)]
    assert once.announced([Cleared(), stored(0, 1, CPU)]) == [Cleared(), stored(0, 1, CPU)]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(1, 4))))
def test_whoever_is_told_knows_what_is_there(history: list[tuple[bool, int, int]]) -> None:
    once, copies, known = KeptOnce(), Counter[int](), set[bytes]()
    for stores, first, count in history:
        numbers = range(first, first + count)
        if stores:
            copies.update(numbers)
        else:
            numbers = [number for number in numbers if copies[number]]
            copies.subtract(numbers)
        for event in once.announced(
            [stored(first, first + count) if stores else removed(*numbers)]
        ):
            assert not isinstance(event, Cleared)
            for digest in event.block_hashes:
                assert (digest in known) is isinstance(event, Removed)
            known ^= set(event.block_hashes)
        assert known == {bytes([number]) for number in +copies}
