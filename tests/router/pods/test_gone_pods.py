"""Nothing of a pod that has gone stays in the router, though batches of its events were held."""

import asyncio
import gc
import sys
import weakref
from pathlib import Path

import zmq
import zmq.asyncio

from tests.router.running_router import running_router
from warmpath.indexer.embedded import embedded_index
from warmpath.indexer.engines import vllm
from warmpath.indexer.follow.instance import RankSource
from warmpath.indexer.follow.stream_source import RankIngest
from warmpath.indexer.keys.key import pack_tokens
from warmpath.indexer.ranks import Ingest
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc
from warmpath.router.config.read import parse

MODEL = '[[models]]\nname = "m"\n'
POD = """
[[pods]]
id = "{}"
model = "m"
address = "127.0.0.1:1"
events = "tcp://127.0.0.1:{}"
replay = "tcp://127.0.0.1:{}"
"""
PROMPT = pb.Prompt(model="m", token_ids_packed=pack_tokens(range(64)))
SERVER = "[server]\nlisten = '127.0.0.1:0'\nmetrics-listen = '127.0.0.1:0'\n"


def test_a_rank_that_is_removed_lets_the_batches_go_that_it_holds() -> None:
    ingest = Ingest(
        embedded_index(1 << 20),
        hash_seed="",
        pending_bytes=1 << 30,
        stale_after=1.0,
        clock=lambda: 0.0,
    )
    rank = ingest.add(RankSource("a", 0, "m", decode=vllm.decode, has_replay=True))
    rank.connected()
    payload = bytes(1 << 20)
    before = sys.getrefcount(payload)
    rank.live("", 7, payload)
    assert sys.getrefcount(payload) > before
    ingest.remove("a", 0)
    assert sys.getrefcount(payload) == before


async def test_a_pod_that_goes_while_batches_are_held_leaves_nothing(tmp_path: Path) -> None:
    context = zmq.asyncio.Context()
    events, replay = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
    ports = [one.bind_to_random_port("tcp://127.0.0.1") for one in (events, replay)]
    try:
        async with (
            asyncio.timeout(120),
            running_router(tmp_path, MODEL + POD.format("a", *ports)) as (router, channel),
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
            other = POD.format("b", *ports)
            await router.reload(parse(SERVER + MODEL + other, "test"))
            # Each part may remember the last answer; the next one replaces it.
            while left() is not None:
                await stub.Score(pb.ScoreRequest(prompt=PROMPT))
                await stub.Pick(pb.PickRequest(prompt=PROMPT))
                gc.collect()
                await asyncio.sleep(0.01)
    finally:
        context.destroy(linger=0)
