"""Engines whose events are true, without a GPU; some serve requests behind a gateway, and have a fault now and then."""

import asyncio
import hashlib
import json
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from enum import Enum
from random import Random
from typing import Any

import msgspec
import zmq.asyncio
from aiohttp import web

from tests.engine_sockets import PAGES, EngineSockets
from tests.servers.relay import Relay

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


LATE_SECONDS = 3.0
"""By how much late pages come late: more than the router's probe.timeout-seconds."""
BASE_SECONDS, TOKEN_SECONDS = 0.005, 20e-6
"""The time of a prefill, and of each token of it that was not cached."""


class Fault(Enum):
    HUNG = "hung"
    """It takes requests and answers none; /health answers 200, and its gauges stand still."""
    ASLEEP = "asleep"
    """`/sleep` of vLLM, level 2: requests wait, the cache is gone, and /health answers 200."""
    CUT_OFF = "cut off"
    """Its connections stay open, and no byte passes."""
    LATE = "late"
    """It serves requests, but its pages answer after LATE_SECONDS."""


class ServingEngine(HonestEngine):
    """One rank, reached through relays: its HTTP server, its events and its replays."""

    def __init__(self, pod: str, *, seed: int, context: zmq.asyncio.Context) -> None:
        super().__init__(pod, capacity=400, seed=seed, context=context, model="served")
        self.fault: Fault | None = None
        self._mended = asyncio.Event()
        self._under_way = 0
        self._page = ""
        """The metrics when it hung."""
        self._relays = [Relay(int(of.rpartition(":")[2])) for of in (self.events, self.replay)]
        self.events, self.replay = (f"tcp://127.0.0.1:{relay.port}" for relay in self._relays)

    async def start(self) -> None:
        app = web.Application(client_max_size=1 << 24)
        app.router.add_get("/{path:.*}", self._get)
        app.router.add_post("/v1/completions", self._complete)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self._relays.append(Relay(self._runner.addresses[0][1]))
        self.address = f"127.0.0.1:{self._relays[-1].port}"
        for relay in self._relays:
            relay.start()
        self._replaying = asyncio.create_task(self._serve_replays())

    async def begin(self, fault: Fault) -> None:
        self._page = self._metrics()
        self.fault = fault
        self._mended.clear()
        if fault is Fault.CUT_OFF:
            for relay in self._relays:
                relay.pause()

    async def mend(self) -> None:
        """End the fault; requests that were held up fail."""
        fault, self.fault = self.fault, None
        self._mended.set()
        if fault is Fault.CUT_OFF:
            for relay in self._relays:
                relay.resume()
        elif fault is Fault.ASLEEP:
            await self.forget()

    async def _get(self, request: web.Request) -> web.Response:
        if self.fault is Fault.LATE:
            await asyncio.sleep(LATE_SECONDS)
        if request.path == "/metrics":
            return web.Response(text=self._page if self.fault is Fault.HUNG else self._metrics())
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": self.model, "parent": None}]})
        body = PAGES.get(request.path)
        return web.Response(status=404) if body is None else web.Response(body=body)

    def _metrics(self) -> str:
        asleep = int(self.fault is Fault.ASLEEP)
        states = {"awake": 1 - asleep, "weights_offloaded": 0, "discard_all": asleep}
        return "".join(
            f"{name} {value}\n"
            for name, value in (
                ('vllm:num_requests_running{engine="0"}', float(self._under_way)),
                ('vllm:num_requests_waiting{engine="0"}', 0.0),
                ('vllm:kv_cache_usage_perc{engine="0"}', self._under_way / 100),
                *(
                    (f'vllm:engine_sleep_state{{engine="0",sleep_state="{state}"}}', float(on))
                    for state, on in states.items()
                ),
                ("process_start_time_seconds", 1000.0),
            )
        )

    async def _complete(self, request: web.Request) -> web.Response:
        prompt: list[int] = (await request.json())["prompt"]
        self._under_way += 1
        try:
            if self.fault in {Fault.HUNG, Fault.ASLEEP}:
                await self._mended.wait()
                return web.Response(status=500)
            cached = self.held_tokens(prompt)
            await self.serve(prompt)
            await asyncio.sleep(BASE_SECONDS + TOKEN_SECONDS * (len(prompt) - cached))
        finally:
            self._under_way -= 1
        details = {"cached_tokens": cached}
        usage: dict[str, Any] = {"prompt_tokens": len(prompt), "prompt_tokens_details": details}
        return web.json_response({"choices": [{"text": "x"}], "usage": usage})

    async def end(self) -> None:
        await self._runner.cleanup()
        for relay in self._relays:
            relay.close()
        self._replaying.cancel()
        self._live.close()
        self._replay.close()
