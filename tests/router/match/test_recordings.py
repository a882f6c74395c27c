"""What a router says of prompts beside what recorded engines found: LMCache, and hashes that look ahead.

`tests/vllm/record_lookahead.py` of commit 7b94846c recorded vLLM's own manager from 0.33 on with an EAGLE drafter: a block's hash
covers the tokens behind it, too; its groups have full attention.
"""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.indexer.consistent import check
from tests.indexer.memory_index import MemoryIndex
from tests.recordings import LMCACHE, VLLM_LOOKAHEAD
from warmpath.indexer.embedded import embedded_index, packed_keys
from warmpath.indexer.engines import vllm
from warmpath.indexer.engines.cache_groups import Lookahead
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.follow.instance import RankSource
from warmpath.indexer.follow.stream_source import RankIngest
from warmpath.indexer.keys.key import Item, pack_tokens, unpack_words
from warmpath.indexer.ranks import Ingest
from warmpath.indexer.trust import Level
from warmpath.router.match.match import Scorer
from warmpath.router.prompt.token_prompt import TokenPrompt
from warmpath.scorer.match import NOTHING
from warmpath.scorer.strategies import longest_prefix

PATHS = pytest.mark.parametrize("pure", [False, True], ids=["compiled", "pure"])


class Heard(NamedTuple):
    """A recorded request, and what a router says of it when it comes."""

    row: dict[str, Any]
    said: int
    level: Level
    rank: RankIngest


def follow(path: Path, *, pure: bool, spare: int = 0) -> Iterator[Heard]:
    """Follow a recording's batches, of an engine that never uses `spare` of its blocks."""
    with gzip.open(path, "rt") as lines:
        head, *rows = map(json.loads, lines)
    index = MemoryIndex() if pure else embedded_index(1 << 24)
    ingest = Ingest(index, hash_seed="", pending_bytes=1 << 24, stale_after=1.0, clock=lambda: 0.0)
    source = RankSource(
        "p", 0, "m", vllm.decode, has_replay=False, capacity=head.get("blocks", spare) - spare,
        dialect="" if pure else "vllm",
    )  # fmt: skip
    rank = ingest.add(source)
    rank.connected()
    scorer = Scorer(ingest, "")
    for row in rows:
        if row["kind"] == "events":
            rank.live("", row["seq"], bytes.fromhex(row["payload_hex"]))
            continue
        items = tuple(Item(*item) for item in row.get("items", ()))
        prompt = TokenPrompt(
            "m",
            pack_tokens(row["tokens"]),
            row.get("lora", ""),
            row.get("cache_salt", ""),
            items=items,
        )
        match = scorer.matches(prompt, [rank], longest_prefix).get(rank, NOTHING)
        yield Heard(row, match.matched_tokens, rank.trust.level, rank)
    check(ingest)


@PATHS
@pytest.mark.parametrize("mode", ["in-process", "server"])
def test_vllm_never_finds_less_than_said_and_more_where_lmcache_holds_it(
    mode: str, pure: bool
) -> None:
    more = 0
    for row, told, *_ in follow(LMCACHE[mode], pure=pure):
        found = row["cached"]
        assert told <= found
        # Where LMCache holds the whole prompt, vLLM computes only the last token anew.
        if told != found:
            assert found % 64 == 0 or found == len(row["tokens"]) - 1
            more += 1
    assert 5 < more < 10


@PATHS
def test_events_of_lmcaches_engine_inside_vllm_make_a_rank_degraded(pure: bool) -> None:
    *_, (*_, rank) = follow(LMCACHE["in-process"], pure=pure)
    assert rank.trust.level == Level.DEGRADED
    assert "parent is unknown" in rank.trust.reason
    *_, (*_, rank) = follow(LMCACHE["server"], pure=pure)
    assert rank.trust.level == Level.EXACT


@PATHS
def test_chunks_that_lmcaches_server_announces_are_held_until_it_evicts_them(pure: bool) -> None:
    equal = 0
    for number, (row, *_, rank) in enumerate(follow(LMCACHE["server-events"], pure=pure)):
        chain = TokenPrompt("m", pack_tokens(row["tokens"]), is_whole=True).chain(16, "")
        there = rank.state.held().get((Tier.CPU, 0), set())
        keys = unpack_words(packed_keys(chain))
        leading = next((at for at, key in enumerate(keys) if key not in there), len(keys)) * 16
        if number:
            assert rank.trust.level == Level.DEGRADED
            # Where records were lost, a chunk comes whose parent was withdrawn.
            expected = "blocks of 64 tokens whole or not at all" if number < 30 else "is unknown"
            assert expected in rank.trust.reason
        if 20 < number < 30:
            # vLLM's worker has read nothing since request 20.
            continue
        if 30 <= number <= 40:
            # The server's log had let records go, so the worker withdrew what it had announced; the
            # server has ended and begun anew at request 40.
            assert leading < row["host"] + 64
            continue
        # LMCache finds whole chunks; of a chunk that another prompt leaves, the first blocks are shown.
        assert row["host"] <= leading < row["host"] + 64
        equal += leading == row["host"] > 0
    assert equal > 10


@PATHS
@pytest.mark.parametrize("kind", ["", "-window"], ids=["full attention", "a window beside it"])
def test_where_hashes_look_ahead_each_request_is_told_what_vllm_found_for_it(
    kind: str, pure: bool
) -> None:
    heard = list(follow(VLLM_LOOKAHEAD[kind], pure=pure, spare=1))
    assert heard[-1].rank.layout.form == (4, Lookahead.NEXT)
    assert [one for one in heard if one.said != one.row["cached"]] == []
    assert {one.level for one in heard[1:]} == {Level.EXACT}
    assert sum(one.said > 0 for one in heard) > len(heard) // 4
    for name in ("items", "cache_salt", "lora"):
        assert kind or any(one.said for one in heard if one.row[name])


@PATHS
def test_where_hashes_cover_several_tokens_no_answer_is_exact(pure: bool) -> None:
    heard = list(follow(VLLM_LOOKAHEAD["-3"], pure=pure, spare=1))
    assert heard[-1].rank.layout.form == (4, Lookahead.NEXT)
    assert {one.level for one in heard[1:]} == {Level.DEGRADED}
    # A prompt that goes on otherwise is shown one block too many.
    assert {one.said - one.row["cached"] for one in heard} == {0, 4}
