"""An engine whose events are true, without a GPU: its sockets and its cache."""

import hashlib
import json
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from random import Random

import msgspec
import zmq.asyncio

from tests.engine_sockets import EngineSockets

BLOCK = 16
VOCABULARY = 50_000


class TrueCache:
    """Blocks by name, at most `capacity`, reused in the order of last use, a prompt's tail first."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.blocks: OrderedDict[int, int] = OrderedDict()
        """Name -> key."""

    def hits(self, names: Sequence[int]) -> int:
        return next((at for at, name in enumerate(names) if name not in self.blocks), len(names))

    def compute(
        self, names: Sequence[int], keys: Sequence[int], tokens: Sequence[int]
    ) -> list[dict[str, object]]:
        """Hold a prompt's whole blocks; return the events of what is removed and stored."""
        hits = self.hits(names)
        for name in names[:hits]:
            self.blocks.move_to_end(name)
        gone = []
        while len(self.blocks) + len(names) - hits > self.capacity:
            gone.append(self.blocks.popitem(last=False)[0])
        self.blocks |= zip(names[hits:], keys[hits:], strict=True)
        # The tail is reused first, so no block is held without its parent.
        for name in reversed(names):
            self.blocks.move_to_end(name)
        events: list[dict[str, object]] = []
        if gone:
            events.append({"type": "BlockRemoved", "block_hashes": gone, "medium": "GPU"})
        if hits < len(names):
            events.append(
                {
                    "type": "BlockStored", "block_hashes": names[hits:],
                    "parent_block_hash": names[hits - 1] if hits else None,
                    "token_ids": tokens[hits * BLOCK : len(names) * BLOCK], "block_size": BLOCK,
                    "lora_id": None, "medium": "GPU", "lora_name": None,
                }
            )  # fmt: skip
        return events


class HonestEngine(EngineSockets):
    """One vLLM rank with a true cache of `capacity` blocks."""

    def __init__(
        self,
        pod: str,
        *,
        capacity: int,
        seed: int,
        context: zmq.asyncio.Context,
        model: str = "m",
        host: str = "127.0.0.1",
    ) -> None:
        super().__init__(context, host)
        self.pod = pod
        self.model = model
        self.rng = Random(seed)
        self.sequence = -1
        self.prompts: deque[list[int]] = deque(maxlen=50)
        """The prompts served last."""
        self.cache = TrueCache(capacity)

    def held_tokens(self, prompt: Sequence[int]) -> int:
        """Return the leading tokens of a prompt that are cached, of all but its last one."""
        return self.cache.hits(_names(prompt[: (len(prompt) - 1) // BLOCK * BLOCK])) * BLOCK

    async def serve(self, prompt: list[int]) -> None:
        """Compute a prompt of whole blocks and a token more; publish stored and removed blocks."""
        names = _names(prompt[: len(prompt) // BLOCK * BLOCK])
        self.prompts.append(prompt)
        await self._publish(self.cache.compute(names, names, prompt))

    async def forget(self) -> None:
        self.cache.blocks.clear()
        await self._publish([{"type": "AllBlocksCleared"}])

    async def _publish(self, events: list[dict[str, object]]) -> None:
        self.sequence += 1
        payload = msgspec.msgpack.encode([time.time(), events, 0])
        await self.publish(self.sequence, payload)


def new_prompt(rng: Random, blocks: int, prefix: Sequence[int] = ()) -> list[int]:
    return [*prefix, *(rng.randrange(VOCABULARY) for _ in range(blocks * BLOCK + 1))]


def _names(tokens: Sequence[int]) -> list[int]:
    names, digest = [], hashlib.blake2b(digest_size=8)
    for at in range(0, len(tokens), BLOCK):
        digest.update(repr(tokens[at : at + BLOCK]).encode())
        names.append(int.from_bytes(digest.digest(), "little"))
    return names


def chat_body(text: str) -> bytes:
    return json.dumps({"model": "text", "messages": [{"role": "user", "content": text}]}).encode()
