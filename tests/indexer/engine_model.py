"""A true model of an engine's cache and publisher, for tests: what it holds and what it says."""

from collections import Counter, deque

import msgspec

from indexer.key import Keyspace, chain
from indexer.token import pack_tokens

BLOCK = 2


class EngineModel:
    """Holds named blocks, publishes vLLM batches, keeps a short replay buffer.

    A name is (life, prefix): unique to its content, as engine hashes are.
    """

    def __init__(self, *, buffer_steps: int = 6) -> None:
        self.life = 0
        self.buffer_steps = buffer_steps
        self.start()

    def start(self) -> None:
        """Begin a new life with an empty cache."""
        self.copies: Counter[tuple[int, ...]] = Counter()
        self.sequence = -1
        self.buffer: deque[tuple[int, bytes]] = deque(maxlen=self.buffer_steps)
        self.snapshots: dict[int, set[int]] = {-1: set()}

    def restart(self) -> None:
        self.life += 1
        self.start()

    def name(self, prefix: tuple[int, ...]) -> int:
        return hash((self.life, prefix)) & ((1 << 64) - 1)

    def held(self) -> set[int]:
        """Return the keys of the blocks that are cached."""
        root = Keyspace(model="m", block_size=BLOCK).root()
        return {chain(root, pack_tokens(prefix), BLOCK)[-1] for prefix in self.copies}

    def publish(self, events: list[dict[str, object]]) -> tuple[int, bytes]:
        """Publish one batch; return its sequence and payload."""
        self.sequence += 1
        timestamp = self.life * 1e6 + self.sequence  # a wall clock never says the same twice
        batch = msgspec.msgpack.encode([timestamp, events, 0])
        self.buffer.append((self.sequence, batch))
        self.snapshots[self.sequence] = self.held()
        return self.sequence, batch

    def store(self, tokens: tuple[int, ...]) -> tuple[int, bytes]:
        """Store a sequence's blocks that are not cached yet, or its last block once more."""
        prefixes = [tokens[: end + BLOCK] for end in range(0, len(tokens) - BLOCK + 1, BLOCK)]
        first = next((i for i, p in enumerate(prefixes) if p not in self.copies), len(prefixes) - 1)
        fresh = prefixes[first:]
        for prefix in fresh:
            self.copies[prefix] += 1
        return self.publish(
            [
                {
                    "type": "BlockStored",
                    "block_hashes": [self.name(prefix) for prefix in fresh],
                    "parent_block_hash": self.name(prefixes[first - 1]) if first else None,
                    "token_ids": list(tokens[first * BLOCK : len(prefixes) * BLOCK]),
                    "block_size": BLOCK,
                    "lora_id": None,
                    "medium": "GPU",
                    "lora_name": None,
                }
            ]
        )

    def evict(self, which: int) -> tuple[int, bytes] | None:
        """Evict one copy of some block, a parent or not."""
        if not self.copies:
            return None
        prefix = sorted(self.copies)[which % len(self.copies)]
        self.copies[prefix] -= 1
        if not self.copies[prefix]:
            del self.copies[prefix]
        return self.publish(
            [{"type": "BlockRemoved", "block_hashes": [self.name(prefix)], "medium": "GPU"}]
        )

    def clear(self) -> tuple[int, bytes]:
        self.copies.clear()
        return self.publish([{"type": "AllBlocksCleared"}])
