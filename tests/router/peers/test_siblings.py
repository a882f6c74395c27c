"""The processes of one router share bookings over their parent's board."""

import asyncio
import signal
import socket
from functools import partial
from pathlib import Path

import grpc.aio

from tests.router.pick_stand import QUIET, UNENDING, Stand, pod, prompt
from tests.router.running_router import serving
from tests.waiting import until
from warmpath.indexer.shared.redis.command import Command, UnreachableError
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc
from warmpath.router.peers.siblings import Board, answer, siblings


async def test_a_reply_that_came_too_late_is_not_taken_for_the_next_one() -> None:
    here, there = socket.socketpair()
    async with siblings(there.detach()) as client:
        assert isinstance(
            (await client.run([Command(("GET", "x"))], timeout=0.01))[0], UnreachableError
        )
        answering = asyncio.create_task(answer(Board(lambda: 0.0), here))
        written = Command(("SET", "x", b"value", "PX", "1000"))
        asked = [written, Command(("GET", "x"))]
        assert await client.run(asked, timeout=30) == [b"OK", b"value"]
        answering.cancel()
        await asyncio.wait([answering])
        assert isinstance((await client.run(asked, timeout=30))[0], UnreachableError)


async def test_each_process_counts_the_others_picks_and_hands_their_reports_on(
    tmp_path: Path, held_port: int
) -> None:
    text = (
        f'[server]\nprocesses = 2\nlisten = "127.0.0.1:{held_port}"\nmetrics-listen = ""\n'
        f'drain-delay-seconds = 0\n{QUIET}{UNENDING}[[models]]\nname = "demo"\n{pod("a")}{pod("b")}'
    )
    async with serving(tmp_path / "router.toml", text) as router:
        of_process: dict[str, tuple[Stand, str]] = {}
        # The kernel chooses a process for each connection; a booking's name says which it was.
        while len(of_process) < 2:
            channel = grpc.aio.insecure_channel(
                router.address, options=[("grpc.use_local_subchannel_pool", 1)]
            )
            stand = Stand(router.address, router_pb2_grpc.RouterStub(channel))
            picked = await stand.pick(prompt(first=1000 * len(of_process)))
            name = picked.booking_id.partition("-")[0]
            if name in of_process:
                await stand.report(picked.booking_id, "FAILED")
            else:
                of_process[name] = stand, picked.booking_id
        (one, first), (other, second) = of_process.values()

        async def has(stand: Stand, bookings: int) -> bool:
            explained = await stand.explain(prompt(first=9000))
            return sum(one.details.in_flight for one in explained.candidates) == bookings

        for stand in (one, other):
            await until(partial(has, stand, 2))
        assert await one.report(second, "FINISHED")
        assert await other.report(first, "FINISHED")
        for stand in (one, other):
            await until(partial(has, stand, 0))
        router.process.send_signal(signal.SIGTERM)
        assert await router.process.wait() == 0
