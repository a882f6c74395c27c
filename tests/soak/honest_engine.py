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


class HonestEngine(EngineSockets):
    """One vLLM rank of `capacity` blocks, reused in the order of last use, a prompt's tail first."""

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
        self._capacity = capacity
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def blocks(self) -> int:
        """Return how many blocks are held."""
        return len(self._blocks)

    def held_tokens(self, prompt: Sequence[int]) -> int:
        """Return the leading tokens of a prompt that are cached, of all but its last one."""
        held = 0
        for name in _names(prompt[: (len(prompt) - 1) // BLOCK * BLOCK]):
            if name not in self._blocks:
                break
            held += BLOCK
        return held

    async def serve(self, prompt: list[int]) -> None:
        """Compute a prompt of whole blocks and a token more; publish stored and removed blocks."""
        names = _names(prompt[: len(prompt) // BLOCK * BLOCK])
        hits = 0
        while hits < len(names) and names[hits] in self._blocks:
            hits += 1
        for name in reversed(names[:hits]):
            self._blocks.move_to_end(name)
        gone = []
        while len(self._blocks) + len(names) - hits > self._capacity:
            gone.append(self._blocks.popitem(last=False)[0])
        events: list[dict[str, object]] = []
        if gone:
            events.append({"type": "BlockRemoved", "block_hashes": gone, "medium": "GPU"})
        self._blocks |= dict.fromkeys(names[hits:])
        # The tail is reused first, so no block is held without its parent.
        for name in reversed(names):
            self._blocks.move_to_end(name)
        if hits < len(names):
            events.append(
                {
                    "type": "BlockStored", "block_hashes": names[hits:],
                    "parent_block_hash": names[hits - 1] if hits else None,
                    "token_ids": prompt[hits * BLOCK : len(names) * BLOCK], "block_size": BLOCK,
                    "lora_id": None, "medium": "GPU", "lora_name": None,
                }
            )  # fmt: skip
        self.prompts.append(prompt)
        await self._publish(events)

    async def forget(self) -> None:
        """Empty the cache, and publish that."""
        self._blocks.clear()
        await self._publish([{"type": "AllBlocksCleared"}])

    async def _publish(self, events: list[dict[str, object]]) -> None:
        self.sequence += 1
        payload = msgspec.msgpack.encode([time.time(), events, 0])
        await self.publish(self.sequence, payload)


def new_prompt(rng: Random, blocks: int, prefix: Sequence[int] = ()) -> list[int]:
    """Return a prompt of a prefix, random blocks, and one token more."""
    return [*prefix, *(rng.randrange(VOCABULARY) for _ in range(blocks * BLOCK + 1))]


def _names(tokens: Sequence[int]) -> list[int]:
    names, digest = [], hashlib.blake2b(digest_size=8)
    for at in range(0, len(tokens), BLOCK):
        digest.update(repr(tokens[at : at + BLOCK]).encode())
        names.append(int.from_bytes(digest.digest(), "little"))
    return names


def chat_body(text: str) -> bytes:
    """Return an OpenAI chat request's body."""
    return json.dumps({"model": "text", "messages": [{"role": "user", "content": text}]}).encode()
