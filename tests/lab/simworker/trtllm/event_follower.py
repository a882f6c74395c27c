"""A follower that knows only the events, and the true content with which to compare it."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from warmpath.lab.simworker.trtllm.cache.kv_cache_manager import KVCacheManager


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
