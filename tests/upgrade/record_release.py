"""Records this version for tests of later ones: a publisher's stream and keys in Redis, a router's files.

PYTHONPATH=. .venv/bin/python tests/upgrade/record_release.py tests/recorded/release-VERSION.json
"""

import asyncio
import json
import sys
import tempfile
from base64 import b64encode
from pathlib import Path
from typing import Any

import grpc.aio
import msgspec

from tests.publisher.published_pod import FULL, IDS, SETTINGS, Pod, asking
from tests.servers.redis_server import RedisServer
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.keys.key import fingerprint, pack_tokens
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.layout.record import read_record
from warmpath.indexer.trust import Level
from warmpath.lab.local.cluster import MODEL
from warmpath.process.command_line import version
from warmpath.proto.pb.warmpath.v1 import router_pb2 as router_pb
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2 as pb
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2_grpc

LATER = list(range(1000, 1100))
"""A prompt that comes after the snapshot, so that the stream has deltas too."""
PREFIX = "release"


def text(raw: bytes) -> str:
    """Return bytes for JSON."""
    return b64encode(raw).decode()


def content(server: RedisServer) -> list[dict[str, Any]]:
    """Return every key of a server, with its type and its content."""
    found = []
    for key in sorted(server.ask("KEYS", "*")):
        kind = server.ask("TYPE", key).decode()
        match kind:
            case "hash":
                value: Any = {text(k): text(v) for k, v in server.ask("HGETALL", key).items()}
            case "stream":
                value = [
                    [entry.decode(), {text(k): text(v) for k, v in fields.items()}]
                    for entry, fields in server.ask("XRANGE", key, "-", "+")
                ]
            case "string":
                value = text(server.ask("GET", key))
            case _:
                raise AssertionError(f"{key!r} is a {kind}")
        found.append({"key": key.decode(), "type": kind, "value": value})
    return found


def words() -> dict[str, list[str]]:
    """Return what a router of this version knows where a message has a word or a choice."""
    return {
        "tier": sorted(Tier),
        "trust": sorted(Level),
        "change": sorted(one.name for one in pb.Change.DESCRIPTOR.fields),
        "response": sorted(one.name for one in pb.WatchResponse.DESCRIPTOR.fields),
    }


async def watched(pod: Pod) -> list[bytes]:
    """Return a publisher's messages: a snapshot of IDS, and the deltas of LATER."""
    messages: list[bytes] = []
    async with grpc.aio.insecure_channel(pod.address) as channel:
        stub = cache_watch_pb2_grpc.CacheWatchStub(channel)
        request = pb.WatchRequest(keyspace=fingerprint(MODEL, ""))
        blocks = 0
        async for response in stub.Watch(request):  # type: ignore[attr-defined]
            messages.append(response.SerializeToString())
            if response.HasField("end"):
                await pod.generate(LATER)
            for change in response.delta.changes:
                blocks += len(change.added.keys) // 8
            if blocks >= (len(LATER) - 1) // SETTINGS.block_size:
                return messages
    raise AssertionError("the stream has ended")


async def served(pod: Pod, folder: Path) -> dict[str, str]:
    """Return the state file of a router, and its bookings as other routers read them from Redis."""
    with RedisServer("redis") as server:
        config = (
            '[server]\nlisten = "127.0.0.1:0"\nmetrics-listen = ""\ndrain-delay-seconds = 0\n'
            f'[index]\nstate-file = "state"\n[[models]]\nname = "{MODEL}"\n'
            f'[[pods]]\nid = "p"\nmodel = "{MODEL}"\naddress = "{pod.worker.address}"\n'
            f'events = "{pod.worker.events}"\nreplay = "{pod.worker.replay}"\n'
            f'[shared-index]\nurl = "{server.url}"\nprefix = "{PREFIX}"\nshare-bookings = true\n'
        )
        async with asking(config, folder) as asker:
            await asker.until(lambda score: score.matched_tokens == FULL)
            prompt = router_pb.Prompt(model=MODEL, token_ids_packed=pack_tokens(LATER))
            await asker.stub.Pick(router_pb.PickRequest(prompt=prompt), timeout=60)
            value = None
            while value is None or not msgspec.msgpack.decode(value)[2]:
                [key] = server.ask("KEYS", f"{PREFIX}:*:load") or [b""]
                value = server.ask("GET", key) if key else None
                await asyncio.sleep(0.01)
    return {"bookings": text(value), "state_file": text((folder / "state").read_bytes())}


async def record(folder: Path) -> dict[str, Any]:
    """Return a recording of this version."""
    names = KeyNames(PREFIX)
    async with Pod(folder) as pod:
        with RedisServer("redis") as server:
            await pod.publish(f"--redis={server.url}", f"--redis-prefix={PREFIX}")
            await pod.generate(IDS)
            messages = await watched(pod)
            for _ in range(6000):
                found = read_record(server.ask("HGETALL", names.record("p")))
                if found and found.sound and found.audits > 2 and found.blocks[0]:
                    break
                await asyncio.sleep(0.01)
            keys = content(server)
        files = await served(pod, folder)
    return {
        "version": version(),
        "model": MODEL,
        "block_size": SETTINGS.block_size,
        "prompts": [IDS, LATER],
        "prefix": PREFIX,
        "words": words(),
        "watch": [text(one) for one in messages],
        "redis": keys,
        **files,
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        recorded = asyncio.run(record(Path(temporary)))
    Path(sys.argv[1]).write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")
