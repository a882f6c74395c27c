"""Engines that answer late, are cut off, sleep or are paused: which of them may take requests."""

import math
import socket
import struct
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from aiohttp import web

from tests.indexer.engine_model import EngineModel
from tests.router.pods.engine import Engine
from warmpath.router.pods.probe import LOOKS


async def test_a_late_health_is_no_reason_while_events_arrive(engine: Engine) -> None:
    engine.late = {"/health"}
    await engine.look()
    assert engine.pod.ready, "nothing is known yet but that it is late"
    for sequence in range(5):
        engine.rank.live("", sequence, msgspec.msgpack.encode([0.0, [], None]))
        await engine.look(2)
        assert engine.pod.ready
    await engine.look(3)
    assert not engine.pod.ready
    assert engine.pod.is_only_late
    engine.rank.disconnected()
    assert not engine.pod.is_only_late


async def reset_at_once(request: web.Request) -> None:
    assert request.transport is not None
    request.transport.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
    )
    request.transport.abort()


async def close_at_once(request: web.Request) -> None:
    assert request.transport is not None
    request.transport.close()


async def break_off(request: web.Request) -> None:
    response = web.StreamResponse(headers={"Content-Length": "99"})
    await response.prepare(request)
    await response.write(b"partly")
    await close_at_once(request)


@pytest.mark.parametrize(
    "says", ["late", 408, 425, 429, 504, reset_at_once, close_at_once, break_off]
)
async def test_a_late_or_busy_health_or_a_cut_connection_is_no_reason_while_answers_arrive(
    engine: Engine, says: str | int | Callable[[web.Request], Awaitable[None]]
) -> None:
    engine.pod.has_events = False
    await engine.look()
    if isinstance(says, str):
        engine.late = {"/health"}
    elif isinstance(says, int):
        engine.health = says
    else:
        engine.cut = says
    for _ in range(8):
        engine.answered = engine.now
        await engine.look()
        assert (engine.pod.ready, engine.status.is_late) == (True, True)
        assert engine.status.models == ("m", "tuned")
    await engine.look(3)
    assert (engine.pod.ready, engine.pod.is_only_late) == (False, True), "no answer comes any more"
    assert not engine.ended
    engine.health, engine.cut, engine.late = 200, None, set()
    await engine.look()
    assert (engine.pod.ready, engine.status.is_late) == (True, False)
    assert engine.status.reason == "/health answers"


async def test_metrics_are_read_of_a_pod_whose_health_is_late(engine: Engine) -> None:
    engine.metrics = b"vllm:num_requests_running 3\nvllm:num_requests_waiting 1\n"
    engine.late = {"/health"}
    await engine.look()
    assert [one.requests for _, _, one in engine.seen] == [4]


@pytest.mark.parametrize("status", [500, 503])
async def test_a_pod_that_was_late_and_then_refuses_is_down_at_once(
    engine: Engine, status: int
) -> None:
    await engine.look()
    engine.late = {"/health"}
    engine.answered = math.inf
    await engine.look(2)
    assert engine.pod.ready
    engine.late, engine.health = set(), status
    await engine.look()
    assert not engine.pod.ready
    assert not engine.pod.is_only_late
    assert engine.status.refuses is (status == 503)
    engine.late = {"/health"}
    await engine.look()
    assert engine.pod.ready is (status != 503), (
        "one that drains answers still, and takes no more requests"
    )


async def test_an_engine_that_ends_while_it_is_late_has_ended(
    engine: Engine, held_port: int
) -> None:
    await engine.look()
    engine.late = {"/health"}
    await engine.look(4)
    assert (engine.pod.ready, engine.ended) == (False, [])
    engine.pod.address = f"127.0.0.1:{held_port}"
    await engine.look()
    assert (engine.pod.ready, engine.pod.is_only_late, engine.ended) == (False, False, ["p"])


def sleep_page(awake: int, offloaded: int, discarded: int) -> bytes:
    """Return vLLM's series of the sleep states of two engines, of which the second is as given."""
    states = {"awake": awake, "weights_offloaded": offloaded, "discard_all": discarded}
    rows = [
        f'vllm:engine_sleep_state{{engine="{engine}",sleep_state="{state}"}} {value:.1f}'
        for engine, given in enumerate(({"awake": 1}, states))
        for state, value in ({"weights_offloaded": 0, "discard_all": 0} | given).items()
    ]
    return "\n".join(rows).encode()


@pytest.mark.parametrize("states", [(0, 1, 0), (0, 0, 1)])
async def test_an_engine_that_sleeps_refuses_requests_and_holds_nothing(
    engine: Engine, states: tuple[int, int, int]
) -> None:
    engine.metrics = sleep_page(1, 0, 0)
    engine.rank.live("", *EngineModel().store((0, 1)))
    await engine.look()
    assert engine.pod.ready
    assert any(engine.rank.blocks().values())
    engine.metrics = sleep_page(*states)
    await engine.look(2)
    assert (engine.pod.ready, engine.status.refuses, engine.ended) == (False, True, ["p"])
    assert not any(engine.rank.blocks().values())
    assert "vllm:engine_sleep_state" in engine.status.reason
    engine.late = {"/metrics"}
    await engine.look()
    assert not engine.pod.ready, "nothing says that it is awake"
    engine.late, engine.metrics = set(), sleep_page(1, 0, 0)
    await engine.look()
    assert (engine.pod.ready, engine.status.refuses) == (True, False)
    assert not any(engine.rank.blocks().values())


async def test_an_engine_that_is_paused_is_not_ready_and_keeps_its_blocks(engine: Engine) -> None:
    engine.rank.live("", *EngineModel().store((0, 1)))
    for page, is_paused in ((sleep_page(0, 0, 0), False), (sleep_page(1, 0, 0), True)):
        engine.missing = set() if is_paused else {"/is_paused"}
        engine.metrics, engine.is_paused = page, is_paused
        await engine.look(LOOKS + 1)
        assert (engine.pod.ready, engine.status.refuses) == (False, False)
        engine.metrics, engine.is_paused = sleep_page(1, 0, 0), False
        await engine.look()
        assert engine.pod.ready
    assert any(engine.rank.blocks().values())
