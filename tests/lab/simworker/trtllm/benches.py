"""A manager of TensorRT-LLM whose pools hold something, and a follower that knows only its events."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from hypothesis import strategies as st

from warmpath.lab.simworker.trtllm.blocks.block import KVCacheBlock, Slot
from warmpath.lab.simworker.trtllm.blocks.pools import BlockPools
from warmpath.lab.simworker.trtllm.cache.block_cache import CacheOptions
from warmpath.lab.simworker.trtllm.cache.kv_cache_manager import KVCacheManager
from warmpath.lab.simworker.trtllm.events.event_manager import KVCacheEventManager
from warmpath.lab.simworker.trtllm.events.kv_cache_event import KVCacheEvent, serialise
from warmpath.lab.simworker.trtllm.requests.llm_request import LlmRequest

FULL = 64
"""Tokens of the longest sequence: a window of as many does not slide."""


Prefix = tuple[int, ...]


class SlotContents(BlockPools):
    """Moves contents as the real pools do; `blocks` are those of the manager under test."""

    @classmethod
    def of(cls, pools: BlockPools) -> "SlotContents":
        contents = cls(pools.num_primary, pools.num_secondary)
        contents.blocks = pools.blocks
        return contents

    def __post_init__(self) -> None:
        super().__post_init__()
        self.held: dict[Slot, list[Prefix | None]] = {}
        self.num_offloaded = self.num_partial_copies = 0

    def write(self, block: KVCacheBlock, offset: int, prefix: Prefix) -> None:
        """Compute a token at `offset` in its block; `prefix` ends with this token."""
        assert block.is_primary
        assert block.ref_count
        row = self.held.setdefault(block.slot, [])
        row.extend([None] * (offset + 1 - len(row)))
        row[offset] = prefix

    def read(self, block: KVCacheBlock, count: int) -> list[Prefix | None]:
        return self.held.get(block.slot, [])[:count]

    def offload(self, block: KVCacheBlock, target: KVCacheBlock) -> None:
        self.num_offloaded += 1
        content = self.held.get(block.slot, [])
        super().offload(block, target)
        self.held[block.slot] = list(content)

    def onboard(self, block: KVCacheBlock, target: KVCacheBlock) -> None:
        content = self.held.get(block.slot, [])
        super().onboard(block, target)
        self.held[block.slot] = list(content)

    def copy_part(self, source: KVCacheBlock, target: KVCacheBlock, num_tokens: int) -> None:
        super().copy_part(source, target, num_tokens)
        self.num_partial_copies += 1
        self.held[target.slot] = self.held.get(source.slot, [])[:num_tokens]


class Bench:
    """A manager whose pools hold something, and the requests in it."""

    def __init__(
        self,
        windows: dict[int, tuple[int, int]] | None = None,
        size: int = 4,
        *,
        enable_block_reuse: bool = True,
        **options: Any,
    ) -> None:
        self.now = 0.0
        self.manager = KVCacheManager(
            windows or {FULL: (8, 2)},
            CacheOptions(
                size, event_manager=KVCacheEventManager(1000), clock=lambda: self.now, **options
            ),
            max_sequence_length=FULL,
            enable_block_reuse=enable_block_reuse,
        )
        self.size = size
        self.contents: dict[int, SlotContents] = {}
        for window, one in self.manager.windows.items():
            one.cache.pools = self.contents[window] = SlotContents.of(one.cache.pools)
        self.requests: dict[int, LlmRequest] = {}
        self.made = 0

    def add(self, tokens: list[int], **fields: Any) -> LlmRequest:
        """Add a sequence and compute what was not found of it."""
        request = LlmRequest(self.made, list(tokens), **fields)
        self.manager.add_sequence(self.made, len(tokens), request)
        self.requests[self.made] = request
        self.made += 1
        found = request.prepopulated_prompt_len
        assert 0 <= found < len(tokens)
        for window in self.contents:
            # What is said to be cached must be there before anything else is computed.
            assert self.readable(request, window)[:found] == prefixes(tokens)[:found]
            for position in range(found, len(tokens)):
                self.compute(request, window, position)
        return request

    def found(self, tokens: list[int]) -> int:
        """Add a sequence; return how many of its tokens were cached."""
        return self.add(tokens).prepopulated_prompt_len

    def ids(self, request: LlmRequest, window: int) -> list[int]:
        return self.manager.get_sequence(request.request_id).cache_block_ids[window]

    def compute(self, request: LlmRequest, window: int, position: int) -> None:
        contents = self.contents[window]
        block = contents.blocks[self.ids(request, window)[position // self.size]]
        contents.write(block, position % self.size, tuple(request.tokens[: position + 1]))

    def grow(self, request: LlmRequest, *tokens: int) -> None:
        for token in tokens:
            self.manager.add_token(request.request_id)
            request.add_new_token(token)
            for window in self.contents:
                self.compute(request, window, len(request.tokens) - 1)

    def release(self, request: LlmRequest, *, store: bool = True) -> None:
        del self.requests[request.request_id]
        self.manager.remove_sequence(request.request_id, request if store else None)

    def readable(self, request: LlmRequest, window: int) -> list[Prefix | None]:
        """Return what stands in a sequence's blocks; None for what slid out."""
        sequence = self.manager.get_sequence(request.request_id)
        gone = sequence.num_front_blocks_removed[window]
        rows: list[Prefix | None] = [None] * (gone * self.size)
        for number, block in enumerate(self.manager.windows[window].blocks_of(sequence), gone):
            count = min(self.size, sequence.num_tokens - number * self.size)
            rows += self.contents[window].read(block, count)
        return rows

    def events(self) -> list[KVCacheEvent]:
        self.manager.flush_iteration_events()
        return self.manager.get_latest_events()

    def kinds(self) -> list[str]:
        return [serialise(event)["data"]["type"] for event in self.events()]

    def cached(self, window: int = FULL) -> list[KVCacheBlock]:
        return list(self.manager.windows[window].cache.tree.walk())

    def check(self) -> None:
        self.manager.check()
        for window, contents in self.contents.items():
            for request in self.requests.values():
                sequence = self.manager.get_sequence(request.request_id)
                gone = self.size * sequence.num_front_blocks_removed[window]
                assert self.readable(request, window)[gone:] == prefixes(request.tokens)[gone:]
            paths: dict[int, Prefix] = {-1: ()}
            for block in self.cached(window):
                assert block.prev_block is not None
                path = paths[block.prev_block.block_id]
                tokens = paths[block.block_id] = path + block.key.tokens
                expected = prefixes(list(tokens))[len(path) :]
                assert contents.read(block, len(block.key.tokens)) == expected


def prefixes(tokens: list[int]) -> list[Prefix]:
    return [tuple(tokens[: count + 1]) for count in range(len(tokens))]


def texts(longest: int) -> st.SearchStrategy[list[int]]:
    """Return texts of 1 to `longest` tokens, 1 and 2, that often share a prefix.

    Each is made by two draws, since drawing long lists is slow.
    """
    return st.builds(
        lambda count, bits: [1 + (bits >> place & 1) for place in range(count)],
        st.integers(1, longest),
        st.integers(0, (1 << longest) - 1),
    )


class Known(NamedTuple):
    """A cached block, with the part of its key that events carry."""

    parent: int | None
    tokens: tuple[int, ...]
    level: int


class EventFollower:
    """Follows serialised events from the start; keeps the blocks of each window by hash."""

    def __init__(self) -> None:
        self.windows: dict[int, dict[int, Known]] = {}
        self.capacity: dict[int, list[int]] = {}
        self.next_id = 0

    def follow(self, events: Iterable[dict[str, Any]]) -> None:
        for event in events:
            assert event["event_id"] == self.next_id
            self.next_id += 1
            self._take(event["data"], event["window_size"])

    def _take(self, data: dict[str, Any], window: int) -> None:
        if data["type"] == "created":
            assert window not in self.windows
            self.windows[window] = {}
            self.capacity[window] = data["num_blocks_per_cache_level"]
            return
        blocks = self.windows[window]
        if data["type"] == "stored":
            parent = data["parent_hash"]
            assert parent is None or parent in blocks
            for block in data["blocks"]:
                tokens = tuple(token["token_id"] for token in block["tokens"])
                blocks[block["block_hash"]] = Known(parent, tokens, block["cache_level"])
                parent = block["block_hash"]
        elif data["type"] == "removed":
            for name in data["block_hashes"]:
                del blocks[name]
        else:
            level, known = data["cache_level"], blocks[data["block_hash"]]
            if level is not None:
                assert known.level == level["old_value"]
                blocks[data["block_hash"]] = known._replace(level=level["new_value"])


def truth(manager: KVCacheManager) -> dict[int, dict[int, Known]]:
    """Return the cached blocks of each window, by hash."""
    found: dict[int, dict[int, Known]] = {}
    for window, one in manager.windows.items():
        blocks = found[window] = {}
        for block in one.cache.tree.walk():
            parent = block.prev_block
            assert parent is not None
            above = parent.hash if parent.block_id >= 0 else None
            blocks[block.hash] = Known(above, block.key.tokens, block.slot.level)
    return found
