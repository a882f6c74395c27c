"""Messages are read when there is room for them, and callers that send none keep nobody out."""

import asyncio
import gc
import re
from pathlib import Path

import grpc
import grpc.aio
import pytest

from tests.router.http2_client import Http2Client
from tests.router.pick_calls import Codes
from tests.router.pick_stand import QUIET, Stand, pod, prompt, standing
from warmpath.h2grpc.http2.limits import Http2Limits
from warmpath.h2grpc.method import Refusal, RefusedError
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.admission.in_flight import InFlight
from warmpath.router.assemble import calls
from warmpath.router.calls import server
from warmpath.router.calls.intake import Intake
from warmpath.router.transport.grpcio import GrpcioServer

TIGHT = "[limits]\nmax-prompt-bytes = 1048576\nmax-prompt-tokens = 100000\n"
ROOM = TIGHT + "max-in-flight-bytes = 16777216\n"


async def test_calls_that_never_send_a_message_keep_nobody_out(tmp_path: Path) -> None:
    async with (
        standing(tmp_path, QUIET + ROOM + pod("a")) as stand,
        Http2Client(stand.address) as attacker,
    ):
        for _ in range(300):
            attacker.begin("Score")
        for _ in range(20):
            await _score(stand)


async def test_more_messages_than_there_is_room_for_are_all_answered(tmp_path: Path) -> None:
    async with standing(tmp_path, QUIET + ROOM + pod("a")) as stand:
        await asyncio.gather(*(_score(stand) for _ in range(100)))


async def test_a_late_message_ends_with_a_clear_text_where_others_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = QUIET + TIGHT + "max-in-flight-bytes = 1000\n" + pod("a")
    for part in (calls, server):
        monkeypatch.setattr(part, "MESSAGE_SECONDS", 0.2)
    async with (
        standing(tmp_path, tables) as stand,
        Http2Client(stand.address) as attacker,
        grpc.aio.insecure_channel(stand.address) as channel,
    ):
        call = channel.stream_unary("/warmpath.v1.Router/Pick")()
        await call.wait_for_connection()
        # Several: whichever call comes first, another waits.
        for _ in range(20):
            attacker.begin("Pick")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert re.search(r"message (did not come|came) within 0\.2 s", refused.value.details() or "")


class Message(bytes):
    """Records when it is freed."""

    alive = 0

    def __init__(self, *_: object) -> None:
        Message.alive += 1

    def __del__(self) -> None:
        Message.alive -= 1


async def test_a_refused_call_leaves_nothing_for_the_collector_of_cycles() -> None:
    refused = 0

    async def handle(message: bytes, _: object) -> None:
        copy = Message(message)
        try:
            int(copy)
        except ValueError as error:
            raise RefusedError(Refusal(grpc.StatusCode.INVALID_ARGUMENT, "no")) from error

    in_flight = InFlight(100, 10, seconds=1.0, clock=lambda: 0.0)
    intake = Intake(in_flight, in_flight, Codes(), seconds=1.0)
    server = GrpcioServer({"/it/Ask": intake.method("Ask", handle)}, Http2Limits())
    address = await server.start("127.0.0.1:0")
    gc.disable()
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            for _ in range(3):
                with pytest.raises(grpc.aio.AioRpcError):
                    await channel.unary_unary("/it/Ask")(b"x")
                refused += 1
            while Message.alive or in_flight.bytes:
                await asyncio.sleep(0.01)
    finally:
        gc.enable()
        await server.stop(0)
    assert refused == 3


async def _score(stand: Stand) -> None:
    await stand.stub.Score(pb.ScoreRequest(prompt=prompt()), timeout=30)
