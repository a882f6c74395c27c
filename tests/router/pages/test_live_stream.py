"""The stream of events for as many viewers as may watch, the history, and the page's files with their policy."""

import asyncio
import re
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.router.pages.stand import events, live, pods
from tests.router.running_router import running_router
from tests.router.service_stand import IDS, packed, standing
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.pages import live_stream
from warmpath.router.pages.listener import ASSETS, KINDS, POLICY
from warmpath.router.pages.live_stream import LIVE, MOST, MOST_VIEWERS, LiveStream


async def test_a_viewer_gets_the_history_then_snapshots_with_decisions(
    tmp_path: Path, model_folder: Path
) -> None:
    async with standing(tmp_path, model_folder) as stand:
        await stand.generate({"model": "demo", "prompt": IDS})
        await stand.has_blocks(6)
        picked = await stand.stub.Pick(pb.PickRequest(prompt=packed()))
        async with stand.http.get(f"http://{stand.router.http_address}{LIVE}") as response:
            assert response.content_type == "text/event-stream"
            told = events(response)
            name, history = await anext(told)
            assert name == "history"
            assert history[0]["at"] > 0
            name, snapshot = await anext(told)
            assert name == "snapshot"
            name, (decision,) = await anext(told)
            assert name == "decisions"
    [pod] = snapshot["pods"]
    [rank] = pod["ranks"]
    assert snapshot["ready"]
    assert (pod["id"], pod["ready"], rank["trust"]) == ("pod-1", True, "exact")
    assert rank["tiers"]["gpu"] >= 6
    assert rank["running"] == pod["requests"] == 1
    [client] = snapshot["clients"]
    assert (client["client"], client["tenant"], client["captured_tokens"]) == ("", "", 96)
    assert client["saved_seconds"] > 0
    point = snapshot["point"]
    assert point["captured_tokens"] == point["average_tokens"] == 96
    assert (decision["booking_id"], decision["pod"]) == (picked.booking_id, "pod-1")
    assert decision["candidates"][0]["matched_tokens"] == 96
    assert decision["cached_tokens"] is decision["ttft"] is None


async def test_no_view_has_a_prompt_or_a_token(tmp_path: Path, model_folder: Path) -> None:
    async with standing(tmp_path, model_folder) as stand:
        text = "an unmistakable word"
        await stand.stub.Pick(pb.PickRequest(prompt=pb.Prompt(model="demo", text=text)))
        async with stand.http.get(f"http://{stand.router.http_address}{LIVE}") as response:
            told = events(response)
            seen = [await anext(told) for _ in range(3)]
    assert "unmistakable" not in str(seen)


async def test_a_stream_outlives_other_connections_and_ends_with_the_router(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_stream, "FRAME_SECONDS", 0.01)
    monkeypatch.setattr("warmpath.process.http_listener.CONNECTION_SECONDS", 0.2)
    ended = asyncio.Event()

    async def watch(address: str, seen: list[str]) -> None:
        async with aiohttp.ClientSession() as http, http.get(f"http://{address}{LIVE}") as response:
            async for name, _ in events(response):
                seen.append(name)
        ended.set()

    seen: list[str] = []
    async with running_router(tmp_path, pods("pod-1")) as (router, _):
        watching = asyncio.create_task(watch(router.http_address, seen))
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while loop.time() < begun + 0.5 or seen.count("snapshot") < 3:
            assert not watching.done()
            await asyncio.sleep(0.01)
    await ended.wait()
    await watching


async def test_one_viewer_too_many_is_told_so_and_a_place_is_free_when_one_goes(
    tmp_path: Path,
) -> None:
    async with live(tmp_path, pods("pod-1")) as (_, session), AsyncExitStack() as stack:
        for _ in range(MOST_VIEWERS):
            response = await stack.enter_async_context(session.get(LIVE))
            assert response.status == 200
        async with session.get(LIVE) as refused:
            assert refused.status == 503
            assert str(MOST_VIEWERS) in (await refused.json())["error"]
        response.close()
        while True:
            async with session.get(LIVE) as again:
                if again.status == 200:
                    break
            await asyncio.sleep(0.01)


async def test_one_address_with_all_the_streams_keeps_no_other_address_out(tmp_path: Path) -> None:
    async with live(tmp_path, pods("pod-1")) as (router, session), AsyncExitStack() as stack:
        held = []
        for _ in range(MOST_VIEWERS):
            response = await stack.enter_async_context(session.get(LIVE))
            assert response.status == 200
            held.append(response)
        elsewhere = aiohttp.TCPConnector(local_addr=("127.0.0.2", 0))
        other = await stack.enter_async_context(
            aiohttp.ClientSession(f"http://{router.http_address}", connector=elsewhere)
        )
        watching = await stack.enter_async_context(other.get(LIVE))
        assert watching.status == 200
        with pytest.raises(aiohttp.ClientError):
            await held[-1].read()
        async with session.get(LIVE) as refused:
            assert refused.status == 503


class Views:
    """Makes points at given times."""

    def __init__(self, times: Callable[[], float]) -> None:
        self._times = times
        self.offset = 0.0

    def point(self) -> dict[str, float]:
        return {"at": self._times()}

    def wall_offset(self) -> float:
        return self.offset


def stream(views: Any, most: int = MOST) -> LiveStream:
    return LiveStream(views, views, most)


@given(st.integers(0, 40), st.integers(1, 20))
def test_the_last_points_are_kept(added: int, most: int) -> None:
    live = stream(Views(iter(range(added)).__next__), most)
    for _ in range(added):
        live.add_point()
    assert [point["at"] for point in live.points()] == [*range(added)][-most:]


def test_points_move_with_the_machines_clock_when_that_is_set() -> None:
    views = Views(lambda: 1 + views.offset)
    live = stream(views)
    views.offset = 5.0
    live.add_point()
    views.offset = 1000.0
    live.add_point()
    assert [point["at"] for point in live.points()] == [1001.0, 1001.0]


NAMES = {one.name for one in ASSETS.iterdir()}


async def test_all_files_are_served_with_the_policy(tmp_path: Path) -> None:
    async with live(tmp_path, pods("pod-1")) as (_, session):
        for name in NAMES:
            path = "/" if name == "index.html" else f"/live/{name}"
            async with session.get(path) as answer:
                assert answer.status == 200
                assert answer.content_type == KINDS[name.rpartition(".")[2]]
                assert answer.headers["Content-Security-Policy"] == POLICY
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                assert await answer.read() == ASSETS.joinpath(name).read_bytes()
        async with session.get("/live/../listener.py") as answer:
            assert answer.status == 404


def test_the_files_name_no_other() -> None:
    for name in NAMES:
        text = ASSETS.joinpath(name).read_text(encoding="utf-8")
        for named in re.findall(r'(?:from |src=|href=)"(?:\./|/live/)([^"]+)"', text):
            assert named in NAMES, (name, named)
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), name


def test_texts_never_become_markup() -> None:
    for name in NAMES:
        if name.endswith(".js"):
            text = ASSETS.joinpath(name).read_text(encoding="utf-8")
            assert not re.search(
                r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text
            )
