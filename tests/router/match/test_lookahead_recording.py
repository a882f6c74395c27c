"""vLLM from 0.33 on with an EAGLE drafter: a block's hash covers the tokens behind it, too.

`tests/vllm/record_lookahead.py` recorded vLLM's own manager and events; its groups have full attention.
"""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.indexer.consistent import check
from tests.recordings import VLLM_LOOKAHEAD
from warmpath.indexer.embedded import embedded_index
from warmpath.indexer.engines import vllm
from warmpath.indexer.engines.cache_groups import Lookahead
from warmpath.indexer.follow.instance import RankSource
from warmpath.indexer.follow.stream_source import RankIngest
from warmpath.indexer.index.memory import MemoryIndex
from warmpath.indexer.keys.extra import Item
from warmpath.indexer.keys.key import pack_tokens
from warmpath.indexer.ranks import Ingest
from warmpath.indexer.trust import Level
from warmpath.router.match.match import Scorer
from warmpath.router.prompt.token_prompt import TokenPrompt
from warmpath.scorer.match import NOTHING
from warmpath.scorer.strategies import longest_prefix


class Answer(NamedTuple):
    row: dict[str, Any]
    said: int
    level: Level


def answers(path: Path, *, pure: bool) -> Iterator[Answer]:
    """Follow a recording and score each request when it comes, as a router does."""
    with gzip.open(path, "rt") as lines:
        head, *rows = map(json.loads, lines)
    index = MemoryIndex() if pure else embedded_index(1 << 24)
    ingest = Ingest(index, hash_seed="", pending_bytes=1 << 24, stale_after=1.0, clock=lambda: 0.0)
    source = RankSource(
        "p", 0, "m", vllm.decode, has_replay=False, capacity=head["blocks"] - 1,
        dialect="" if pure else "vllm",
    )  # fmt: skip
    rank: RankIngest = ingest.add(source)
    rank.connected()
    scorer = Scorer(ingest, "")
    for row in rows:
        if row["kind"] == "events":
            rank.live("", row["seq"], bytes.fromhex(row["payload_hex"]))
            assert rank.layout.form == (4, Lookahead.NEXT)
            continue
        items = tuple(Item(*item) for item in row["items"])
        prompt = TokenPrompt(
            "m", pack_tokens(row["tokens"]), row["lora"], row["cache_salt"], items=items
        )
        match = scorer.matches(prompt, [rank], longest_prefix).get(rank, NOTHING)
        yield Answer(row, match.matched_tokens, rank.trust.level)
    check(ingest)


@pytest.mark.parametrize("pure", [False, True], ids=["compiled", "pure"])
@pytest.mark.parametrize("kind", ["", "-window"], ids=["full attention", "a window beside it"])
def test_each_request_is_told_what_vllm_found_for_it(kind: str, pure: bool) -> None:
    heard = list(answers(VLLM_LOOKAHEAD[kind], pure=pure))
    assert [one for one in heard if one.said != one.row["cached"]] == []
    assert {one.level for one in heard[1:]} == {Level.EXACT}
    assert sum(one.said > 0 for one in heard) > len(heard) // 4
    for name in ("items", "cache_salt", "lora"):
        assert kind or any(one.said for one in heard if one.row[name])


@pytest.mark.parametrize("pure", [False, True], ids=["compiled", "pure"])
def test_where_hashes_cover_several_tokens_no_answer_is_exact(pure: bool) -> None:
    heard = list(answers(VLLM_LOOKAHEAD["-3"], pure=pure))
    assert {one.level for one in heard[1:]} == {Level.DEGRADED}
    # A prompt that goes on otherwise is shown one block too many.
    assert {one.said - one.row["cached"] for one in heard} == {0, 4}
