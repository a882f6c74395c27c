"""What SGLang's own prefix caches announced, and what they then found of each request.

`tests/router/sglang/*.jsonl.gz` are recordings of SGLang's tree, event classes and encoder, version by
version, of 50 requests each (the folder's README says how). `make test-sglang` asks the packages themselves.
"""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.engines.sglang.replay import Answer
from tests.engines.sglang.replay import answers as replayed
from tests.indexer.followed import new_ingest
from tests.indexer.memory_index import MemoryIndex
from warmpath.indexer.embedded import embedded_index
from warmpath.indexer.engines import sglang
from warmpath.indexer.follow.instance import RankSource
from warmpath.indexer.ranks import Ingest
from warmpath.indexer.trust import Level

RECORDINGS = Path(__file__).parents[2] / "router" / "sglang"
PLAIN = [
    "0.5.7-radix",
    "0.5.18-radix-salts",
    "0.5.21-rust-salts",
    "0.5.23-rust",
    "0.5.23-rust-dynamo",
    "0.5.23-rust-eagle",
    "0.5.23-rust-tiers",
    "0.5.23-rust-tiers-eagle",
]


def answers(name: str, *, pure: bool, version: str = "") -> Iterator[Answer]:
    return replayed(RECORDINGS / f"sglang-{name}.jsonl.gz", pure=pure, version=version)


@pytest.mark.parametrize("path", sorted(RECORDINGS.glob("*.gz")), ids=lambda path: path.stem)
def test_the_compiled_path_and_the_pure_one_say_the_same_of_each_request(path: Path) -> None:
    name = path.name.removeprefix("sglang-").removesuffix(".jsonl.gz")
    assert list(answers(name, pure=False)) == list(answers(name, pure=True))


@pytest.mark.parametrize("pure", [False, True], ids=["compiled", "pure"])
@pytest.mark.parametrize("name", PLAIN)
def test_each_request_is_told_what_sglang_found_for_it(name: str, pure: bool) -> None:
    version = name.split("-", maxsplit=1)[0]
    heard = list(answers(name, pure=pure, version=version))
    assert [one for one in heard if not one.is_true] == []
    assert any(one.found for one in heard)
    assert {one.trust.level for one in heard} == {Level.EXACT}


@pytest.mark.parametrize("pure", [False, True], ids=["compiled", "pure"])
def test_where_extra_keys_come_nothing_is_claimed_for_them_nor_exactly_for_others(
    pure: bool,
) -> None:
    heard = list(answers("0.5.23-rust-extra-keys", pure=pure, version="0.5.23"))
    assert {one.said for one in heard if one.space["extra_key"]} == {0}
    overclaimed = [one for one in heard if one.said > one.found]
    assert overclaimed
    for one in overclaimed:
        assert one.trust.level is Level.DEGRADED
        assert "extra keys" in one.trust.reason


@pytest.mark.parametrize("pure", [False, True], ids=["compiled", "pure"])
def test_where_adapters_come_that_events_omit_no_wrong_answer_is_exact(pure: bool) -> None:
    heard = list(answers("0.5.21-rust-loras", pure=pure, version="0.5.21"))
    assert {one.said for one in heard if one.space["lora"]} == {0}
    assert {one.trust.level for one in heard if not one.is_true} == {Level.DEGRADED}


@pytest.mark.parametrize("pure", [False, True], ids=["compiled", "pure"])
def test_where_a_model_has_states_the_full_part_is_told_and_never_exactly(pure: bool) -> None:
    heard = list(answers("0.5.23-rust-states", pure=pure, version="0.5.23"))
    assert [one for one in heard if one.said != one.full] == []
    assert any(one.said > one.found for one in heard)
    assert {one.trust.level for one in heard} == {Level.DEGRADED}


@pytest.mark.parametrize("pure", [False, True], ids=["compiled", "pure"])
def test_a_page_that_is_stored_twice_shows_that_events_do_not_tell_everything(pure: bool) -> None:
    with gzip.open(RECORDINGS / "sglang-0.5.23-rust-extra-keys.jsonl.gz", "rt") as lines:
        batches = [row for row in map(json.loads, lines) if row["kind"] == "events"]
    index = MemoryIndex() if pure else embedded_index(1 << 24)
    ingest = Ingest(index, hash_seed="", pending_bytes=1 << 24, stale_after=1.0, clock=lambda: 0.0)
    dialect = "" if pure else "sglang"
    rank = ingest.add(RankSource("p", 0, "m", sglang.decode, has_replay=False, dialect=dialect))
    rank.connected()
    for row in batches:
        rank.live("", row["seq"], bytes.fromhex(row["payload_hex"]))
    assert rank.trust.level is Level.DEGRADED
    assert "stored twice" in rank.trust.reason
    # It is so for as long as the engine lives, whoever follows it.
    after = new_ingest(
        lambda: MemoryIndex() if pure else embedded_index(1 << 24), pending_bytes=1 << 24
    ).add(rank.source)
    after.restore(rank.save())
    after.connected()
    after.live("", batches[-1]["seq"] + 1, msgspec.msgpack.encode([0.0, [["AllBlocksCleared"]], 0]))
    assert "stored twice" in after.trust.reason
    after.live("", 0, msgspec.msgpack.encode([0.0, [["AllBlocksCleared"]], 0]))
    assert after.trust.level is Level.EXACT


@pytest.mark.parametrize("version", ["", "0.5.6.post2"])
def test_0_5_6_is_told_less_than_it_holds_and_the_trust_says_so(version: str) -> None:
    heard = list(answers("0.5.6.post2-radix", pure=False, version=version))
    wrong = [one for one in heard if one.said != one.found]
    assert wrong
    assert all(one.said < one.found and one.trust.level is Level.DEGRADED for one in wrong)
    if version:
        assert {one.trust.level for one in heard} == {Level.DEGRADED}
        assert "0.5.6.post2" in heard[0].trust.reason
