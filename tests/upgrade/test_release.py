"""A router of this version beside publishers of the last release, and the other way round, from recordings.

`record_release.py` made them at the release.
"""

import asyncio
import json
from base64 import b64decode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import msgspec
import pytest
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from tests.indexer.memory_index import MemoryIndex
from tests.indexer.shared.asked_server import AskedServer
from tests.publisher.published_pod import IDS, Pod
from tests.recordings import LAST_RELEASE
from tests.servers.redis_server import RedisServer
from tests.upgrade.record_release import words
from warmpath.indexer.engines.vllm import decode as decode_vllm
from warmpath.indexer.follow.instance import RankSource
from warmpath.indexer.keys.key import Chain, Keyspace, chain, fingerprint, pack_tokens, pack_words
from warmpath.indexer.ranks import Ingest
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.layout.record import Record, read_record
from warmpath.indexer.shared.replica.run import Replica
from warmpath.indexer.trust import Level
from warmpath.indexer.watch.client import Watcher
from warmpath.indexer.watch.watched_source import WatchedRank
from warmpath.process.command_line import version
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2 as pb
from warmpath.router import state_file
from warmpath.router.peers.received import ReceivedBookings

RECORDED: dict[str, Any] = json.loads(LAST_RELEASE.read_text())
MODEL, SIZE = RECORDED["model"], RECORDED["block_size"]
NAMES = KeyNames(RECORDED["prefix"])
CONTRACTS = Path(__file__).parents[2] / "proto" / "released.binpb"


def keys_of(prompt: list[int]) -> list[int]:
    """Return the keys of a prompt's blocks, but the one that holds its last token."""
    whole = (len(prompt) - 1) // SIZE * SIZE
    return chain(Keyspace(model=MODEL, block_size=SIZE).root(), pack_tokens(prompt[:whole]), SIZE)


KEYS = [key for prompt in RECORDED["prompts"] for key in keys_of(prompt)]


def new_ingest(clock: Any = lambda: 0.0) -> Ingest:
    index = MemoryIndex(1 << 24)
    return Ingest(index, hash_seed="", pending_bytes=1, stale_after=1e9, clock=clock)


def held(ingest: Ingest, keys: list[int]) -> list[int]:
    """Return those of the keys that the pod holds."""
    return [
        key
        for key in keys
        if any(
            place.pod == "p"
            for place, _, _ in ingest.match(Chain(0, b"", SIZE, 1, (), pack_words([key])))
        )
    ]


def test_a_publisher_of_the_last_release_is_understood() -> None:
    ingest = new_ingest()
    rank = ingest.watch("p", 0)
    keyspace = fingerprint(MODEL, "")
    watcher = Watcher([rank], "nowhere:1", keyspace=keyspace, credentials=None, retry_seconds=0.0)
    for message in RECORDED["watch"]:
        watcher._take(pb.WatchResponse.FromString(b64decode(message)))
    assert rank.trust.level is Level.EXACT
    assert held(ingest, KEYS) == KEYS


def test_what_a_later_publisher_adds_to_its_messages_is_passed_over() -> None:
    """Field 1000 of every message stands for whatever a later version says besides."""
    more = b"\xc2\x3e\x04more"
    ingest = new_ingest()
    rank = ingest.watch("p", 0)
    watcher = Watcher([rank], "nowhere:1", keyspace="", credentials=None, retry_seconds=0.0)
    for message in RECORDED["watch"]:
        response = pb.WatchResponse.FromString(b64decode(message))
        kind = response.WhichOneof("kind")
        inner = getattr(response, str(kind))
        inner.MergeFromString(more)
        for state in getattr(inner, "ranks", []) if kind == "end" else []:
            state.MergeFromString(more)
        watcher._take(pb.WatchResponse.FromString(response.SerializeToString() + more))
    assert held(ingest, KEYS) == KEYS


def test_nothing_is_said_that_a_router_of_the_last_release_refuses() -> None:
    """A word that routers should know from now on is sent one release later than it is read."""
    assert words() == RECORDED["words"]


def restore(server: RedisServer) -> None:
    """Write the keys of the last release to a server."""
    for one in RECORDED["redis"]:
        key, value = one["key"], one["value"]
        match one["type"]:
            case "hash":
                words = [b64decode(word) for pair in value.items() for word in pair]
                server.ask("HSET", key, *words)
            case "stream":
                for entry, fields in value:
                    words = [b64decode(word) for pair in fields.items() for word in pair]
                    server.ask("XADD", key, entry, *words)
            case "string":
                server.ask("SET", key, b64decode(value))
            case kind:
                raise AssertionError(kind)


def test_a_state_file_of_the_last_release_is_read_or_has_another_version(tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(b64decode(RECORDED["state_file"]))
    try:
        [saved] = state_file.load(tmp_path / "state", "")
    except state_file.BadStateError as error:
        assert f"not {state_file.HEADING.strip()!r}" in str(error)  # noqa: PT017
        return
    ingest = new_ingest()
    rank = ingest.add(
        RankSource("p", 0, MODEL, decode=decode_vllm, has_replay=True, dialect="vllm")
    )
    rank.restore(saved)
    keys = keys_of(IDS)
    assert held(ingest, keys) == keys


def test_bookings_of_a_router_of_the_last_release_count() -> None:
    received = ReceivedBookings("me", "", gone=lambda _: None)
    assert received.receive("other", b64decode(RECORDED["bookings"]), 0.0) is not None
    received.end_round(0.0, is_answered=True)
    assert received.where() == {("p", 0)}
    assert received.on("p", 0, 0.0).in_flight == 1


def test_what_a_later_version_adds_to_records_and_bookings_is_passed_over() -> None:
    [fields] = [
        {b64decode(name): b64decode(value) for name, value in one["value"].items()}
        for one in RECORDED["redis"]
        if one["key"] == NAMES.record("p")
    ]
    later = json.dumps({**json.loads(fields[b"claim"]), "more": [1]}).encode()
    assert read_record({**fields, b"claim": later, b"more": b"x"}) == read_record(fields)
    number, picks, ranks = msgspec.msgpack.decode(b64decode(RECORDED["bookings"]))
    # `certain` of a rank, and `has_ended`, `arriving` and `seed` came after the recording.
    ranks = [[*one, 0, "more"] for one in ranks]
    value = msgspec.msgpack.encode([number, picks, ranks, False, [], "", "more"])
    received = ReceivedBookings("me", "", gone=lambda _: None)
    assert received.receive("other", value, 0.0) is not None


async def copied(redis_server: RedisServer) -> tuple[Ingest, WatchedRank]:
    """Return a router's copy of a server, whose publisher goes on to audit its buckets."""
    now = 0.0
    ingest = new_ingest(lambda: now)
    rank = ingest.watch("p", 0)
    server = AskedServer(redis_server)
    replica = Replica(server, NAMES, poll_seconds=0.05, clock=lambda: now, settled=lambda _: None)
    replica.add("p", [rank], fingerprint(MODEL, ""))
    for _ in range(6):
        now += 1.0
        await replica.step()
        ingest.tick(1000)
        redis_server.ask("HINCRBY", NAMES.record("p"), "audits", 1)
    server.client.close()
    return ingest, rank


async def test_an_index_of_the_last_release_is_copied_and_its_age_is_doubted(
    redis_server: RedisServer,
) -> None:
    """Its publisher audits, and never says how far behind its engine it is."""
    restore(redis_server)
    ingest, rank = await copied(redis_server)
    assert rank.trust.level is Level.DEGRADED, rank.trust
    assert rank.trust.reason.startswith("its publisher has not said for 3 s")
    assert held(ingest, KEYS) == KEYS


async def test_where_the_layout_is_another_router_and_publisher_name_both_versions(
    pod: Pod, redis_server: RedisServer, tmp_path: Path
) -> None:
    restore(redis_server)
    redis_server.ask("HSET", NAMES.schema, "schema", 99, "by", "warmpath 9.0.0")
    before = redis_server.ask("HGETALL", NAMES.record("p"))
    ingest, rank = await copied(redis_server)
    assert held(ingest, KEYS) == []
    names_both = ("schema 99", "begun by warmpath 9.0.0", f"this is warmpath {version()}, which")
    assert rank.trust.level is Level.COLD
    assert [one for one in names_both if one not in rank.trust.reason] == []
    await pod.publish(f"--redis={redis_server.url}", f"--redis-prefix={NAMES.prefix}")
    async with asyncio.timeout(120):
        while not all(one in (tmp_path / "publisher.log").read_text() for one in names_both):
            await asyncio.sleep(0.02)
    after = redis_server.ask("HGETALL", NAMES.record("p"))
    assert {**after, b"audits": b""} == {**before, b"audits": b""}, "nothing of it is touched"


@pytest.fixture
async def pod(tmp_path: Path) -> AsyncIterator[Pod]:
    async with Pod(tmp_path) as pod:
        yield pod


def record_of(server: RedisServer) -> Record | None:
    return read_record(server.ask("HGETALL", NAMES.record("p")))


async def test_a_publisher_of_this_version_takes_over_the_pod_of_one_of_the_last_release(
    pod: Pod, redis_server: RedisServer
) -> None:
    restore(redis_server)
    before = record_of(redis_server)
    assert before is not None
    await pod.publish(f"--redis={redis_server.url}", f"--redis-prefix={NAMES.prefix}")
    await pod.generate(IDS)
    async with asyncio.timeout(120):
        while (found := record_of(redis_server)) is None or not (
            found.token > before.token and found.sound and found.blocks.get(0)
        ):
            await asyncio.sleep(0.02)
    assert found.claim is not None
    assert found.states[0].trust == "exact"


async def test_a_router_of_the_last_release_reads_what_this_publisher_says(pod: Pod) -> None:
    """The contract of the release reads the stream: what it lacks would be unknown to that router."""
    pool = descriptor_pool.DescriptorPool()
    for file in FileDescriptorSet.FromString(CONTRACTS.read_bytes()).file:
        pool.Add(file)
    released = {
        name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"warmpath.watch.v1.{name}")
        )
        for name in ("WatchRequest", "WatchResponse")
    }
    await pod.publish()
    await pod.generate(IDS)
    keys = keys_of(IDS)
    packed = b""
    async with grpc.aio.insecure_channel(pod.address) as channel:
        watch = channel.unary_stream(
            "/warmpath.watch.v1.CacheWatch/Watch",
            request_serializer=released["WatchRequest"].SerializeToString,
            response_deserializer=released["WatchResponse"].FromString,
        )
        responses: Any = watch(released["WatchRequest"](keyspace=fingerprint(MODEL, "")))
        first = True
        async for response in responses:
            assert response.HasField("hello") == first
            first = False
            packed += response.part.keys
            packed += b"".join(change.added.keys for change in response.delta.changes)
            if response.HasField("end"):
                assert response.end.ranks[0].trust in {"exact", "degraded", "cold"}
            if len(packed) >= 8 * len(keys):
                break
    assert {*keys} <= {
        int.from_bytes(packed[at : at + 8], "little") for at in range(0, len(packed), 8)
    }
