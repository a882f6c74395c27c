"""Engines that are followed directly, from any rank on, over HTTPS, and until nothing of them stays."""

import asyncio
import gc
import sys
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import zmq
import zmq.asyncio
from aiohttp import web
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.indexer.followed import new_ingest, source
from tests.indexer.sides import stored
from tests.indexer.trtllm_answers import CREATED, answer
from tests.router.running_router import running_router
from tests.servers.certificates import Authority
from tests.servers.http import serving
from tests.waiting import until
from warmpath.indexer.follow.stream_source import RankIngest
from warmpath.indexer.keys.key import pack_tokens
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc
from warmpath.router.config.read import ConfigError, load, parse
from warmpath.router.config.schema import PodSpec
from warmpath.router.pods import follow
from warmpath.router.pods.discover import Reconciler
from warmpath.router.pods.follow import Follower
from warmpath.router.pods.names import FoundPod
from warmpath.router.pods.probe import Links, Prober
from warmpath.router.pods.table import PodTable

QUIET = "[probe]\ninterval-seconds = 0\n"
MODEL = '[[models]]\nname = "m"\n'
PROMPT = pb.Prompt(model="m", token_ids_packed=pack_tokens(range(64)))
SERVER = "[server]\nlisten = '127.0.0.1:0'\nmetrics-listen = '127.0.0.1:0'\n"


def pod(events: str, more: str = "", name: str = "p", address: str = "127.0.0.1:1") -> str:
    return (
        f'[[pods]]\nid = "{name}"\nmodel = "m"\naddress = "{address}"\nevents = "{events}"\n{more}'
    )


@pytest.mark.parametrize(
    ("tables", "is_said"), [("", True), ("[events]\ntrusted-network = true\n", False)]
)
async def test_events_that_cross_a_network_are_said_in_the_log_and_by_the_doctor(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, tables: str, *, is_said: bool
) -> None:
    # An address for documentation (RFC 5737): nobody answers there.
    tables += QUIET + MODEL + pod("tcp://192.0.2.1:5557")
    async with running_router(tmp_path, tables) as (_, channel):
        answer = await router_pb2_grpc.RouterStub(channel).Diagnose(pb.DiagnoseRequest())
    assert (
        "pod p: its events come from tcp://192.0.2.1:5557 in plain text" in caplog.text
    ) == is_said
    assert ("plain-text" in {one.kind for one in answer.findings}) == is_said


async def test_the_first_ranks_port_counts_from_rank_0s(tmp_path: Path) -> None:
    with zmq.asyncio.Context() as context, context.socket(zmq.PUB) as engine:
        port = engine.bind_to_random_port("tcp://127.0.0.1")
        tables = QUIET + MODEL + pod(f"tcp://127.0.0.1:{port - 3}", "first-rank = 3\n")
        async with running_router(tmp_path, tables) as (_, channel):
            publishing = asyncio.create_task(_publish(engine))
            stub = router_pb2_grpc.RouterStub(channel)
            await until(lambda: _blocks(stub))
            publishing.cancel()


async def test_more_ranks_are_followed_than_zeromq_has_sockets_for_by_default(
    tmp_path: Path,
) -> None:
    with zmq.asyncio.Context() as context, context.socket(zmq.PUB) as engine:
        port = engine.bind_to_random_port("tcp://*")
        ranks = context.get(zmq.MAX_SOCKETS) // 3 + 10
        pods = (
            pod(f"tcp://127.0.{number // 200}.{number % 200 + 1}:{port}", name=f"p{number}")
            for number in range(ranks)
        )
        tables = "".join((QUIET, MODEL, *pods))
        async with running_router(tmp_path, tables) as (_, channel):
            stub = router_pb2_grpc.RouterStub(channel)
            while not all(one.ready for one in (await stub.ListPods(pb.ListPodsRequest())).pods):
                await asyncio.sleep(0.1)


async def _publish(engine: zmq.asyncio.Socket) -> None:
    """Publish repeatedly that a block is stored: a late subscriber gets the next message."""
    batch = msgspec.msgpack.encode([1.0, [stored([7], range(16), None, 16)], 3])
    for sequence in range(1 << 30):
        await engine.send_multipart([b"", sequence.to_bytes(8, "big"), batch])
        await asyncio.sleep(0.01)


async def _blocks(stub: router_pb2_grpc.RouterStub) -> int:
    [found] = (await stub.ListPods(pb.ListPodsRequest())).pods
    [rank] = found.ranks
    assert rank.rank == 0
    return sum(tier.blocks for tier in rank.tiers)


async def test_a_router_asks_an_engine_and_fetches_its_events_over_https(tmp_path: Path) -> None:
    events = [answer(CREATED)]

    async def engine(request: web.Request) -> web.Response:
        if request.path == "/kv_cache_events":
            return web.Response(body=events.pop() if events else b"[]")
        return web.Response()

    authority = Authority(tmp_path)
    async with serving(authority, engine) as address:
        probe = f'[probe]\ninterval-seconds = 0.05\nca = "{authority.ca.name}"\n'
        more = 'https = true\nengine = "trtllm"\n'
        tables = probe + MODEL + pod(f"https://{address}/kv_cache_events", more, address=address)
        async with running_router(tmp_path, tables) as (_, channel), asyncio.timeout(60):
            stub = router_pb2_grpc.RouterStub(channel)
            while True:
                one = (await stub.ListPods(pb.ListPodsRequest(), timeout=5)).pods[0]
                if (one.status, one.ranks[0].trust.level) == ("/health answers", pb.Trust.EXACT):
                    break
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ('ca = "text.pem"\n', ":2: probe.ca: "),
        ('cert = "text.pem"\nkey = "text.pem"\n', ":2: probe.cert: "),
        ('cert = "router.pem"\nkey = "engine.key"\n', ":2: probe.cert: "),
        # OpenSSL would ask at the terminal, and the router wait for it.
        ('cert = "router.pem"\nkey = "locked.key"\n', ":2: probe.cert: "),
    ],
)
def test_files_that_cannot_be_used_are_named_when_the_configuration_is_read(
    tmp_path: Path, table: str, named: str
) -> None:
    authority = Authority(tmp_path)
    authority.certificate("router")
    authority.certificate("engine")
    (tmp_path / "text.pem").write_text("no certificate")
    locked = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    (tmp_path / "locked.key").write_bytes(locked)
    file = tmp_path / "router.toml"
    file.write_text(f'[probe]\n{table}[[models]]\nname = "m"\n')
    with pytest.raises(ConfigError) as error:
        load(file)
    said = str(error.value)
    assert named in said
    assert "cannot be used" in said or "text.pem has no certificate in PEM" in said


def test_a_rank_that_is_removed_lets_the_batches_go_that_it_holds() -> None:
    ingest = new_ingest(pending_bytes=1 << 30)
    rank = ingest.add(source("a"))
    rank.connected()
    payload = bytes(1 << 20)
    before = sys.getrefcount(payload)
    rank.live("", 7, payload)
    assert sys.getrefcount(payload) > before
    ingest.remove("a", 0)
    assert sys.getrefcount(payload) == before


async def test_a_pod_that_is_not_ready_for_a_while_keeps_its_index() -> None:
    config = parse(SERVER + QUIET + MODEL, "test")
    follower = Follower(new_ingest(), PodTable(), config, Path(), None, None, Links())  # type: ignore[arg-type]
    reconciler = Reconciler(follower)
    ready = FoundPod(PodSpec("p", "m", "h:1", events="tcp://127.0.0.1:9"), "uid")
    try:
        await reconciler.reconcile("s", {"p": ready})
        rank, pod = follower.ingest.rank("p", 0), follower.pod("p")
        await reconciler.reconcile("s", {"p": replace(ready, withheld="not ready")})
        assert pod.withheld == "not ready"
        await reconciler.reconcile("s", {"p": replace(ready)})
        assert not pod.withheld
        assert follower.ingest.rank("p", 0) is rank
    finally:
        await follower.close()


@pytest.mark.parametrize(("pods", "pause"), [(1, 2.0), (10, 2.0), (30, 6.0)])
async def test_a_pod_of_a_large_fleet_is_probed_less_often(
    monkeypatch: pytest.MonkeyPatch, pods: int, pause: float
) -> None:
    pauses: list[Callable[[], float]] = []

    class Noted(Prober):
        async def run(self) -> None:
            pauses.append(self.interval)
            await asyncio.Event().wait()

    monkeypatch.setattr(follow, "MOST_PROBES", 5)
    monkeypatch.setattr(follow, "Prober", Noted)
    config = parse(SERVER + MODEL, "test")
    follower = Follower(new_ingest(), PodTable(), config, Path(), None, None, Links())  # type: ignore[arg-type]
    try:
        for number in range(pods):
            follower.follow(PodSpec(f"p{number}", "m", f"h:{number}"))
        await until(lambda: asyncio.sleep(0, len(pauses) == pods))
        assert {one() for one in pauses} == {pause}
    finally:
        await follower.close()


async def test_a_pod_that_goes_while_batches_are_held_leaves_nothing(tmp_path: Path) -> None:
    context = zmq.asyncio.Context()
    events, replay = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
    ports = [one.bind_to_random_port("tcp://127.0.0.1") for one in (events, replay)]
    at, more = f"tcp://127.0.0.1:{ports[0]}", f'replay = "tcp://127.0.0.1:{ports[1]}"\n'
    try:
        async with (
            asyncio.timeout(120),
            running_router(tmp_path, MODEL + pod(at, more, "a")) as (router, channel),
        ):
            stub = router_pb2_grpc.RouterStub(channel)
            # The replay is asked for and never answered, so what is published meanwhile is held.
            await replay.recv_multipart()
            rank = router.ingest.rank("a", 0)
            assert isinstance(rank, RankIngest)
            while not rank.lag_batches:
                await events.send_multipart([b"", (7).to_bytes(8, "big"), bytes(1 << 20)])
                await asyncio.sleep(0.01)
            await stub.Score(pb.ScoreRequest(prompt=PROMPT))
            await stub.Pick(pb.PickRequest(prompt=PROMPT))
            left = weakref.ref(rank)
            del rank
            await router.reload(parse(SERVER + MODEL + pod(at, more, "b"), "test"))
            # Each part may remember the last answer; the next one replaces it.
            while left() is not None:
                await stub.Score(pb.ScoreRequest(prompt=PROMPT))
                await stub.Pick(pb.PickRequest(prompt=PROMPT))
                gc.collect()
                await asyncio.sleep(0.01)
    finally:
        context.destroy(linger=0)
