"""vLLM with LMCache: a recording each of its engine and its server, and of that server's events."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.indexer.consistent import check
from tests.recordings import LMCACHE
from warmpath.indexer.embedded import embedded_index, packed_keys
from warmpath.indexer.engines import vllm
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.follow.instance import RankSource
from warmpath.indexer.follow.stream_source import RankIngest
from warmpath.indexer.index.memory import MemoryIndex
from warmpath.indexer.keys.key import pack_tokens, unpack_words
from warmpath.indexer.ranks import Ingest
from warmpath.indexer.trust import Level
from warmpath.router.match.match import Scorer
from warmpath.router.prompt.token_prompt import TokenPrompt
from warmpath.scorer.match import NOTHING
from warmpath.scorer.strategies import longest_prefix

PATHS = pytest.mark.parametrize("pure", [False, True], ids=["compiled", "pure"])


def follow(path: Path, *, pure: bool) -> Iterator[tuple[dict[str, Any], Ingest, RankIngest]]:
    """Follow a recording's batches; give each of its requests when it comes."""
    with gzip.open(path, "rt") as lines:
        head, *rows = map(json.loads, lines)
    index = MemoryIndex() if pure else embedded_index(1 << 24)
    ingest = Ingest(index, hash_seed="", pending_bytes=1 << 24, stale_after=1.0, clock=lambda: 0.0)
    source = RankSource(
        "p", 0, "m", vllm.decode, has_replay=False, capacity=head.get("blocks", 0),
        dialect="" if pure else "vllm",
    )  # fmt: skip
    rank = ingest.add(source)
    rank.connected()
    for row in rows:
        if row["kind"] == "events":
            rank.live("", row["seq"], bytes.fromhex(row["payload_hex"]))
        else:
            yield row, ingest, rank
    check(ingest)


def said(row: dict[str, Any], ingest: Ingest, rank: RankIngest) -> int:
    prompt = TokenPrompt("m", pack_tokens(row["tokens"]))
    match = Scorer(ingest, "").matches(prompt, [rank], longest_prefix).get(rank, NOTHING)
    return match.matched_tokens


@PATHS
@pytest.mark.parametrize("mode", ["in-process", "server"])
def test_vllm_never_finds_less_than_said_and_more_where_lmcache_holds_it(
    mode: str, pure: bool
) -> None:
    more = 0
    for row, ingest, rank in follow(LMCACHE[mode], pure=pure):
        told, found = said(row, ingest, rank), row["cached"]
        assert told <= found
        # Where LMCache holds the whole prompt, vLLM computes only the last token anew.
        if told != found:
            assert found % 64 == 0 or found == len(row["tokens"]) - 1
            more += 1
    assert 5 < more < 10


@PATHS
def test_events_of_lmcaches_engine_inside_vllm_make_a_rank_degraded(pure: bool) -> None:
    *_, (_, _, rank) = follow(LMCACHE["in-process"], pure=pure)
    assert rank.trust.level == Level.DEGRADED
    assert "parent is unknown" in rank.trust.reason
    *_, (_, _, rank) = follow(LMCACHE["server"], pure=pure)
    assert rank.trust.level == Level.EXACT


@PATHS
def test_chunks_that_lmcaches_server_announces_are_held_until_it_evicts_them(pure: bool) -> None:
    equal = 0
    for number, (row, _, rank) in enumerate(follow(LMCACHE["server-events"], pure=pure)):
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
