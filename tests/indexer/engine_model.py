"""A model of an engine's cache and its events, for tests.

It has a pool of `capacity` blocks, reused in the order of last use, a prompt's tail first, and an
offload tier. The cache and its announcements are kept apart, so that a test can lose announcements.
"""

import hashlib
from collections import deque
from collections.abc import Iterable

import msgspec

from warmpath.indexer.engines.event import Tier
from warmpath.indexer.keys.key import Keyspace, chain, pack_tokens

BLOCK = 2

Block = tuple[str, str, tuple[int, ...]]
"""Adapter, salt, and all tokens up to the block's end."""


class EngineModel:
    """One rank of an engine. Within a life, each block's content has its own name (its hash)."""

    def __init__(
        self, *, buffer_steps: int = 6, capacity: int = 8, has_digests: bool = False
    ) -> None:
        self.life = 0
        self.has_digests = has_digests
        """Whether names are bytes."""
        self.buffer_steps = buffer_steps
        self.capacity = capacity
        self.start()

    def start(self) -> None:
        """Begin a new life with an empty cache."""
        self.gpu: list[Block] = []
        """Every copy; the first is reused first."""
        self.cpu: list[Block] = []
        self.sequence = -1
        self.buffer: deque[tuple[int, bytes]] = deque(maxlen=self.buffer_steps)
        self.misspelt: set[int] = set()
        """Sequences of batches in which an event cannot be understood."""
        self.snapshots: dict[int, dict[Tier, set[int]]] = {-1: self.truth()}

    def restart(self) -> None:
        self.life += 1
        self.start()

    def name(self, block: Block) -> int | bytes:
        if self.has_digests:
            return hashlib.sha256(repr((self.life, block)).encode()).digest()
        return hash((self.life, block)) & ((1 << 64) - 1)

    def held(self) -> set[int]:
        """Return the keys of the blocks that are cached on the GPU."""
        return keys_of(self.gpu)

    def truth(self) -> dict[Tier, set[int]]:
        """Return the keys that each tier holds."""
        return {Tier.GPU: keys_of(self.gpu), Tier.CPU: keys_of(self.cpu)}

    def timestamp(self) -> float:
        """Return the time of a batch; no two have the same."""
        return self.life * 1e6 + self.sequence

    def publish(self, events: list[dict[str, object]]) -> tuple[int, bytes]:
        """Publish one batch; return its sequence and payload."""
        self.sequence += 1
        batch = msgspec.msgpack.encode([self.timestamp(), events, 0])
        self.buffer.append((self.sequence, batch))
        self.snapshots[self.sequence] = self.truth()
        return self.sequence, batch

    def store(self, tokens: tuple[int, ...], lora: str = "", salt: str = "") -> tuple[int, bytes]:
        """Serve a request: reuse cached blocks, store the others, and always the last one."""
        blocks = [
            (lora, salt, tokens[: end + BLOCK]) for end in range(0, len(tokens) - BLOCK + 1, BLOCK)
        ][: self.capacity]
        hits = 0
        while hits < len(blocks) - 1 and blocks[hits] in self.gpu:
            hits += 1
        for block in blocks[:hits]:
            self.gpu.remove(block)
        fresh = blocks[hits:]
        events = []
        while len(self.gpu) + len(blocks) > self.capacity:
            events.append(self._removed(self.gpu.pop(0), "GPU"))
        # The tail is freed first, so that it is reused first.
        self.gpu.extend(reversed(blocks))
        events.append(
            {
                "type": "BlockStored",
                "block_hashes": [self.name(block) for block in fresh],
                "parent_block_hash": self.name(blocks[hits - 1]) if hits else None,
                "token_ids": list(tokens[hits * BLOCK : len(blocks) * BLOCK]),
                "block_size": BLOCK,
                "lora_id": None,
                "medium": "GPU",
                "lora_name": lora or None,
                "extra_keys": [
                    [one for one in (lora, salt if not hits and not number else "") if one] or None
                    for number in range(len(fresh))
                ],
            }
        )
        return self.publish(events)

    def report(self, tokens: tuple[int, ...]) -> tuple[int, bytes] | None:
        """Serve a request with a full report: blocks found are announced as stored; none is stored."""
        blocks: list[Block] = [
            ("", "", tokens[:end]) for end in range(BLOCK, len(tokens) + 1, BLOCK)
        ]
        found = 0
        while found < len(blocks) and blocks[found] in self.gpu:
            found += 1
        if not found:
            return None
        for block in blocks[:found]:
            self.gpu.remove(block)
        self.gpu.extend(reversed(blocks[:found]))
        return self.publish(
            [
                {
                    "type": "BlockStored",
                    "block_hashes": [self.name(block) for block in blocks[:found]],
                    "parent_block_hash": None,
                    "token_ids": list(tokens[: found * BLOCK]),
                    "block_size": BLOCK,
                    "lora_id": None,
                    "medium": "GPU",
                }
            ]
        )

    def touch(self, which: int) -> None:
        """Serve a request that finds all its blocks and fills none: nothing is announced."""
        if not self.gpu:
            return
        lora, salt, tokens = sorted(self.gpu)[which % len(self.gpu)]
        prefix: list[Block] = [
            (lora, salt, tokens[: end + BLOCK]) for end in range(0, len(tokens), BLOCK)
        ]
        if all(block in self.gpu for block in prefix):
            for block in prefix:
                self.gpu.remove(block)
            self.gpu.extend(reversed(prefix))

    def offload(self, which: int) -> tuple[int, bytes] | None:
        """Copy a block to the offload tier, announced without its tokens."""
        if not self.gpu:
            return None
        block = sorted(self.gpu)[which % len(self.gpu)]
        self.cpu.append(block)
        return self.publish(
            [
                {
                    "type": "BlockStored",
                    "block_hashes": [self.name(block)],
                    "parent_block_hash": None,
                    "token_ids": [],
                    "block_size": 0,
                    "lora_id": None,
                    "medium": "CPU",
                    "lora_name": None,
                    "group_idx": 0,
                }
            ]
        )

    def drop_offloaded(self) -> tuple[int, bytes] | None:
        """Remove the oldest copy from the offload tier; None if it is empty."""
        return self.publish([self._removed(self.cpu.pop(0), "CPU")]) if self.cpu else None

    def evict(self, which: int) -> tuple[int, bytes] | None:
        """Evict one copy of a block, even of a block with children; None if the cache is empty."""
        if not self.gpu:
            return None
        block = sorted(self.gpu)[which % len(self.gpu)]
        self.gpu.remove(block)
        return self.publish([self._removed(block, "GPU")])

    def _removed(self, block: Block, medium: str) -> dict[str, object]:
        return {"type": "BlockRemoved", "block_hashes": [self.name(block)], "medium": medium}

    def misspell(self, which: int, kind: str, **fields: object) -> bytes:
        """Make an event of the newest batch unreadable; return the batch."""
        sequence, payload = self.buffer.pop()
        timestamp, events, rank = msgspec.msgpack.decode(payload)
        event = events[which % len(events)]
        event |= {"type": kind or event["type"]} | fields
        odd = msgspec.msgpack.encode([timestamp, events, rank])
        self.buffer.append((sequence, odd))
        self.misspelt.add(sequence)
        return odd

    def can_replay_all(self) -> bool:
        """Return whether every event in the buffer can be understood."""
        return all(sequence not in self.misspelt for sequence, _ in self.buffer)

    def clear(self) -> tuple[int, bytes]:
        self.gpu.clear()
        self.cpu.clear()
        return self.publish([{"type": "AllBlocksCleared"}])


def keys_of(blocks: Iterable[Block]) -> set[int]:
    found = set()
    for lora, salt, tokens in set(blocks):
        root = Keyspace(model="m", block_size=BLOCK, lora=lora, cache_salt=salt).root()
        found.add(chain(root, pack_tokens(tokens), BLOCK)[-1])
    return found
