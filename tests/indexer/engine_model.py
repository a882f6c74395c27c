"""A model of an engine's cache and its events, for tests.

It has a pool of `capacity` blocks, reused in the order of last use, a prompt's tail first, and an
offload tier. The cache and its announcements are kept apart, so that a test can lose announcements.
"""

import hashlib
from collections import deque
from collections.abc import Iterable

import msgspec

from tests.indexer.sides import CLEARED, Event, removed, stored
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

    def publish(self, *events: Event) -> tuple[int, bytes]:
        """Publish one batch; return its sequence and payload."""
        self.sequence += 1
        batch = msgspec.msgpack.encode([self.timestamp(), events, 0])
        self.buffer.append((self.sequence, batch))
        self.snapshots[self.sequence] = self.truth()
        return self.sequence, batch

    def hits(self, blocks: list[Block]) -> int:
        """Return how many of a prompt's leading blocks are cached."""
        return next((at for at, one in enumerate(blocks) if one not in self.gpu), len(blocks))

    def use(self, blocks: list[Block]) -> None:
        """Have a prompt's cached blocks used last."""
        for block in blocks:
            self.gpu.remove(block)
        self.gpu.extend(reversed(blocks))

    def store(self, tokens: tuple[int, ...], lora: str = "", salt: str = "") -> tuple[int, bytes]:
        """Serve a request: reuse cached blocks, store the others, and always the last one."""
        blocks = blocks_of(tokens, lora, salt)[: self.capacity]
        hits = self.hits(blocks[:-1])
        fresh = blocks[hits:]
        for block in blocks[:hits]:
            self.gpu.remove(block)
        evicted = [self.gpu.pop(0) for _ in range(len(self.gpu) + len(blocks) - self.capacity)]
        # The tail is freed first, so that it is reused first.
        self.gpu.extend(reversed(blocks))
        extras = [[one for one in (lora, salt) if one] or None] if not hits else []
        extras += [[lora] if lora else None] * (len(fresh) - len(extras))
        event = stored(
            map(self.name, fresh), tokens[hits * BLOCK : len(blocks) * BLOCK],
            self.name(blocks[hits - 1]) if hits else None, BLOCK,
            lora_name=lora or None, extra_keys=extras,
        )  # fmt: skip
        return self.publish(*(self._removed(block, "GPU") for block in evicted), event)

    def report(self, tokens: tuple[int, ...]) -> tuple[int, bytes] | None:
        """Serve a request with a full report: blocks found are announced as stored; none is stored."""
        found = blocks_of(tokens)[: self.hits(blocks_of(tokens))]
        if not found:
            return None
        self.use(found)
        names = map(self.name, found)
        return self.publish(stored(names, tokens[: len(found) * BLOCK], None, BLOCK))

    def touch(self, which: int) -> None:
        """Serve a request that finds all its blocks and fills none: nothing is announced."""
        if not self.gpu:
            return
        lora, salt, tokens = sorted(self.gpu)[which % len(self.gpu)]
        blocks = blocks_of(tokens, lora, salt)
        if self.hits(blocks) == len(blocks):
            self.use(blocks)

    def offload(self, which: int) -> tuple[int, bytes] | None:
        """Copy a block to the offload tier, announced without its tokens."""
        if not self.gpu:
            return None
        block = sorted(self.gpu)[which % len(self.gpu)]
        self.cpu.append(block)
        return self.publish(stored([self.name(block)], [], None, 0, medium="CPU", group_idx=0))

    def drop_offloaded(self) -> tuple[int, bytes] | None:
        """Remove the oldest copy from the offload tier; None if it is empty."""
        return self.publish(self._removed(self.cpu.pop(0), "CPU")) if self.cpu else None

    def evict(self, which: int) -> tuple[int, bytes] | None:
        """Evict one copy of a block, even of a block with children; None if the cache is empty."""
        if not self.gpu:
            return None
        block = sorted(self.gpu)[which % len(self.gpu)]
        self.gpu.remove(block)
        return self.publish(self._removed(block, "GPU"))

    def _removed(self, block: Block, medium: str) -> Event:
        return removed([self.name(block)], medium)

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
        return self.publish(CLEARED)


def blocks_of(tokens: tuple[int, ...], lora: str = "", salt: str = "") -> list[Block]:
    """Return the full blocks of a prompt."""
    return [(lora, salt, tokens[:end]) for end in range(BLOCK, len(tokens) + 1, BLOCK)]


def keys_of(blocks: Iterable[Block]) -> set[int]:
    found = set()
    for lora, salt, tokens in set(blocks):
        root = Keyspace(model="m", block_size=BLOCK, lora=lora, cache_salt=salt).root()
        found.add(chain(root, pack_tokens(tokens), BLOCK)[-1])
    return found
