"""Models with several caches: a prompt is warm as far as all of them can be reused.

The batches are those that vLLM 0.32's own cache manager made (`tests/recorded/`).
"""

import json

import msgspec
import pytest

from tests.indexer.consistent import check
from tests.indexer.followed import new_ingest, source
from tests.indexer.memory_index import MemoryIndex
from tests.recordings import VLLM_EVENTS
from warmpath.indexer.engines import vllm
from warmpath.indexer.engines.event import Stored
from warmpath.indexer.keys.key import pack_tokens, unpack_tokens
from warmpath.router.match.match import Scorer
from warmpath.router.prompt.token_prompt import TokenPrompt
from warmpath.scorer.match import NOTHING
from warmpath.scorer.strategies import longest_prefix

FILE = json.loads(VLLM_EVENTS.read_text())
VECTORS = {vector["name"]: bytes.fromhex(vector["payload_hex"]) for vector in FILE["vectors"]}


class Fleet:
    """One rank that follows batches, and what it would score."""

    def __init__(self) -> None:
        self.ingest = new_ingest(MemoryIndex)
        self.rank = self.ingest.add(source(has_replay=False))
        self.rank.connected()
        self.sequence = 0

    def take(self, payload: bytes) -> None:
        self.rank.live("", self.sequence, payload)
        self.sequence += 1

    def events(self, *events: dict[str, object]) -> None:
        self.take(msgspec.msgpack.encode([0.0, list(events), 0]))

    def matched(self, tokens: list[int]) -> int:
        prompt = TokenPrompt("m", pack_tokens([*tokens, 0]))
        matches = Scorer(self.ingest, "").matches(prompt, [self.rank], longest_prefix)
        check(self.ingest)
        return matches.get(self.rank, NOTHING).matched_tokens


def stored(
    group: int, kind: str, tokens: list[int], *, size: int = 4, window: int = 0
) -> dict[str, object]:
    names = [
        hash(tuple(tokens[: end + size])) & ((1 << 64) - 1) for end in range(0, len(tokens), size)
    ]
    return {
        "type": "BlockStored", "block_hashes": names, "parent_block_hash": None,
        "token_ids": tokens, "block_size": size, "lora_id": None, "medium": "GPU",
        "lora_name": None, "group_idx": group, "kv_cache_spec_kind": kind,
        "kv_cache_spec_sliding_window": window or None,
    }  # fmt: skip


def removed(group: int, tokens: list[int], *ends: int) -> dict[str, object]:
    names = [hash(tuple(tokens[:end])) & ((1 << 64) - 1) for end in ends]
    return {"type": "BlockRemoved", "block_hashes": names, "medium": "GPU", "group_idx": group}


TOKENS = list(range(100, 124))


def test_the_engines_own_hybrid_batches_are_followed_without_a_remainder() -> None:
    fleet = Fleet()
    for name in ("mgr-hybrid-full-plus-sliding", "mgr-hybrid-decode"):
        fleet.take(VECTORS[name])
    [first, *_] = vllm.decode(VECTORS["mgr-hybrid-full-plus-sliding"]).events
    assert isinstance(first, Stored)
    assert first.tokens
    assert fleet.matched(list(unpack_tokens(first.tokens))) == 24
    fleet.take(VECTORS["mgr-hybrid-evict"])
    counts = fleet.rank.state.counts
    assert (counts.unknown_removals, counts.unplaced, counts.parentless) == (0, 0, 0)


def test_a_window_group_that_skips_blocks_is_placed_by_name() -> None:
    fleet = Fleet()
    fleet.take(VECTORS["mgr-hybrid-masked"])
    [first, *_] = vllm.decode(VECTORS["mgr-hybrid-masked"]).events
    assert isinstance(first, Stored)
    assert first.tokens
    assert fleet.matched(list(unpack_tokens(first.tokens))) == 48
    fleet.take(VECTORS["mgr-hybrid-masked-hit"])
    assert fleet.rank.layout.block_size == 16, "the tail of a prompt is no block size"
    assert fleet.rank.state.counts.parentless == 0


def test_a_prefix_whose_window_is_gone_is_not_warm_there() -> None:
    fleet = Fleet()
    fleet.events(stored(0, "full_attention", TOKENS), stored(1, "sliding_window", TOKENS, window=9))
    assert fleet.matched(TOKENS) == 24
    fleet.events(removed(1, TOKENS, 24))
    assert fleet.matched(TOKENS) == 20, "the window before block 5 is whole"
    fleet.events(removed(1, TOKENS, 12))
    assert fleet.matched(TOKENS) == 20, "blocks left of the window may be gone"
    fleet.events(removed(1, TOKENS, 16))
    assert fleet.matched(TOKENS) == 8, "a window that begins with the prompt counts"


def test_every_full_attention_group_must_hold_the_prefix() -> None:
    fleet = Fleet()
    fleet.events(stored(0, "full_attention", TOKENS), stored(1, "mla_attention", TOKENS))
    fleet.events(removed(1, TOKENS, 12))
    assert fleet.matched(TOKENS) == 8
    fleet.events(removed(0, TOKENS, 4))
    assert fleet.matched(TOKENS) == 0


def test_a_removal_in_one_group_leaves_the_other() -> None:
    fleet = Fleet()
    fleet.events(stored(0, "full_attention", TOKENS))
    fleet.events(removed(1, TOKENS, 4))
    assert fleet.matched(TOKENS) == 24


def test_a_state_cache_is_reused_only_at_its_own_block_ends() -> None:
    fleet = Fleet()
    state = stored(2, "mamba", TOKENS[:8], size=8)
    state["block_hashes"] = [hash(tuple(TOKENS[:8])) & ((1 << 64) - 1)]
    fleet.events(stored(0, "full_attention", TOKENS), state)
    assert fleet.matched(TOKENS) == 8


@pytest.mark.parametrize("kind", ["chunked_local_attention", "cross_attention"])
def test_groups_whose_rule_is_not_known_neither_help_nor_hinder(kind: str) -> None:
    fleet = Fleet()
    fleet.events(stored(0, "full_attention", TOKENS), stored(1, kind, TOKENS[:4]))
    assert fleet.matched(TOKENS) == 24


def test_before_engines_said_the_kinds_the_lowest_group_counts() -> None:
    fleet = Fleet()
    first, second = stored(0, "", TOKENS), stored(1, "", TOKENS[:8])
    for event in (first, second):
        del event["kv_cache_spec_kind"], event["kv_cache_spec_sliding_window"]
    fleet.events(first, second)
    assert fleet.matched(TOKENS) == 24
    fleet.events(removed(1, TOKENS, 4))
    assert fleet.matched(TOKENS) == 24


def test_a_model_with_windows_only_needs_no_more_than_its_window() -> None:
    fleet = Fleet()
    fleet.events(stored(0, "sliding_window", TOKENS, window=9))
    assert fleet.matched(TOKENS) == 24
    fleet.events(removed(0, TOKENS, 4, 8))
    assert fleet.matched(TOKENS) == 24
