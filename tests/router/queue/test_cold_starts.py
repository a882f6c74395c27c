"""Requests that wait for the first pod of their model: over gRPC, and by the parts that decide who goes when."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from tests.router.pick.picker_parts import Parts
from tests.router.pick_stand import QUIET, Stand, pod, prompt, standing
from tests.router.running_router import metrics_of
from tests.waiting import until
from warmpath.router.config.read import parse
from warmpath.router.config.schema import QueueTable
from warmpath.router.pick.eligible import Field, NoPodError, Wanted, field_of
from warmpath.router.queue.cold_starts import ColdStarts
from warmpath.router.queue.request import Asker, ClientWaits, QueueFullError

MODEL = '[[models]]\nname = "demo"\n'


def cold(queue: str = "", seconds: int = 600) -> str:
    return f"{QUIET}[queue]\ncold-start-seconds = {seconds}\n{queue}"


@asynccontextmanager
async def at_zero(folder: Path, queue: str = "", seconds: int = 600) -> AsyncIterator[Stand]:
    """Run a router whose model has no pod."""
    async with standing(folder, cold(queue, seconds), metrics="127.0.0.1:0") as stand:
        yield stand


async def awaited(stand: Stand) -> float:
    told = await metrics_of(stand.http_address)
    return told.get('warmpath_engine_awaited_requests{model="demo"}', 0)


async def are_waiting(stand: Stand, number: int) -> None:
    async def is_so() -> bool:
        return await awaited(stand) == number

    await until(is_so)


async def start_pod(stand: Stand, tables: str) -> None:
    assert stand.reload is not None
    await stand.reload(parse(MODEL + tables + pod("a"), "test"))


async def test_a_pick_waits_for_the_first_pod_of_its_model_and_asks_for_one(
    tmp_path: Path, transport: str
) -> None:
    async with standing(tmp_path, cold(), metrics="127.0.0.1:0", transport=transport) as stand:
        held = asyncio.ensure_future(stand.pick(prompt(), wait=True))
        await are_waiting(stand, 1)
        needed = 'warmpath_engine_pods_needed{model="demo",role="both"}'

        async def asks_for_a_pod() -> bool:
            return (await metrics_of(stand.http_address)).get(needed) == 1

        await until(asks_for_a_pod)
        assert not held.done()
        await start_pod(stand, cold())
        assert (await held).candidates[0].pod == "a"
        await are_waiting(stand, 0)


async def test_a_router_whose_requests_wait_for_pods_is_ready_without_one(tmp_path: Path) -> None:
    ready = 'warmpath_ready_condition{condition="pods",required="true"}'
    async with at_zero(tmp_path) as stand:
        assert (await metrics_of(stand.http_address))[ready] == 1
    async with standing(tmp_path, QUIET, metrics="127.0.0.1:0") as stand:
        assert (await metrics_of(stand.http_address))[ready] == 0


@pytest.mark.parametrize(
    ("seconds", "asked"),
    [(0, {}), (600, {"pods": ["b"]}), (600, {"shadow": True})],
    ids=["not configured", "pods are named", "a shadow pick"],
)
async def test_what_waits_for_no_pod_is_refused_at_once(
    tmp_path: Path, seconds: int, asked: dict[str, object]
) -> None:
    async with at_zero(tmp_path, seconds=seconds) as stand:
        code, text = await stand.refused(stand.pick(prompt(), wait=True, **asked))
        assert code is grpc.StatusCode.UNAVAILABLE
        assert "no pod serves 'demo'" in text or "none of the 1 named pods" in text


async def test_a_pick_that_no_pod_comes_for_in_time_is_refused_with_the_reason(
    tmp_path: Path,
) -> None:
    async with standing(tmp_path, f"{QUIET}[queue]\ncold-start-seconds = 0.1\n") as stand:
        code, text = await stand.refused(stand.pick(prompt(), wait=True))
        assert (code, text) == (grpc.StatusCode.UNAVAILABLE, "no pod serves 'demo'")


async def test_a_caller_that_goes_gives_its_place_back(tmp_path: Path) -> None:
    async with at_zero(tmp_path) as stand:
        held = asyncio.ensure_future(stand.pick(prompt(), wait=True))
        await are_waiting(stand, 1)
        held.cancel()
        await are_waiting(stand, 0)


POD = Parts(1).pods[0]


class Model:
    """A model whose pod is there once `is_there`, and the requests that wait for it."""

    def __init__(
        self, most_of_client: int = 100, settle_seconds: float = 0.0, **settings: object
    ) -> None:
        self.is_there = False
        self.now = 0.0
        self.looks = 0
        self.counts: list[tuple[str, str]] = []
        """The class and the outcome of each wait."""
        table = QueueTable(**{"cold_start_seconds": 600.0, **settings})  # type: ignore[arg-type]
        self.cold = ColdStarts(
            table,
            eligible=self.eligible,
            may=lambda _: None,
            who=lambda _: "",
            waited=lambda *told: self.counts.append(told[:2]),
            waits=ClientWaits(most_of_client),
            clock=lambda: self.now,
            settle_seconds=settle_seconds,
        )
        self.went: list[str] = []

    def eligible(self, wanted: Wanted) -> Field:
        self.looks += 1
        if not self.is_there:
            raise NoPodError("no pod", wanted)
        return field_of([POD])

    async def ask(
        self,
        name: str,
        *,
        priority: str = "",
        size: int = 1,
        client: str = "",
        left: float = math.inf,
    ) -> None:
        error = NoPodError("no pod", Wanted("m"))
        asker = Asker(client)
        await self.cold.wait(error, asker, priority=priority, tenant="", size=size, left=left)
        self.went.append(name)

    async def begin(self, name: str, **fields: object) -> "asyncio.Task[None]":
        """Begin a wait; return once it has its place, or was refused."""
        task = asyncio.ensure_future(self.ask(name, **fields))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        return task


async def test_the_highest_class_goes_first_and_within_it_who_came_first() -> None:
    model = Model()
    tasks = [
        await model.begin(name, priority=priority)
        for name, priority in (("1", "low"), ("2", ""), ("3", "high"), ("4", ""), ("5", "unknown"))
    ]
    assert model.cold.counts() == {"m": 5}
    model.is_there = True
    await asyncio.gather(*tasks)
    assert model.went == ["3", "2", "4", "5", "1"]
    assert model.cold.counts() == {}


async def test_a_pod_has_to_serve_for_a_while_first_so_that_gateways_know_it() -> None:
    model = Model(settle_seconds=3.0)
    held = await model.begin("first")
    model.is_there = True

    async def has_looked_again() -> None:
        looks = model.looks
        while model.looks < looks + 2:
            await asyncio.sleep(0)

    for now in (0.0, 2.9):
        model.now = now
        await has_looked_again()
        assert not held.done()
    model.now = 3.1
    await held


async def test_beyond_the_limits_the_lowest_class_is_refused() -> None:
    model = Model(max_requests=2)
    low, usual = await model.begin("low", priority="low"), await model.begin("usual")
    high = await model.begin("high", priority="high")
    with pytest.raises(QueueFullError, match=r"queue\.max-requests"):
        await low
    with pytest.raises(QueueFullError, match="2 requests wait for a first pod"):
        await model.ask("late", priority="low")
    assert model.cold.refused == 2
    model.is_there = True
    await asyncio.gather(usual, high)
    assert model.went == ["high", "usual"]
    assert sorted(model.counts) == [("high", "sent"), ("low", "refused"), ("normal", "sent")]


async def test_bytes_are_bounded_too() -> None:
    model = Model(max_bytes=1000)
    held = await model.begin("first", size=900)
    with pytest.raises(QueueFullError, match=r"queue\.max-bytes"):
        await model.ask("second", size=200)
    held.cancel()
    await asyncio.wait((held,))
    assert model.cold.counts() == {}


async def test_one_connection_cannot_fill_all_its_calls_with_waits() -> None:
    model = Model(most_of_client=1)
    held = await model.begin("first", client="a")
    with pytest.raises(NoPodError):
        await model.ask("second", client="a")
    other = await model.begin("third", client="b")
    model.is_there = True
    await asyncio.gather(held, other)


async def test_at_the_routers_end_all_get_their_answers() -> None:
    model = Model()
    held = await model.begin("first")
    model.cold.end()
    await held
    with pytest.raises(NoPodError):
        await model.ask("second")


async def test_a_wait_ends_before_the_callers_deadline() -> None:
    model = Model()
    with pytest.raises(NoPodError):
        await model.ask("hurried", left=0.1)
    assert model.counts == [("normal", "refused")]


async def test_other_settings_keep_who_waits_by_the_classes_that_are_left() -> None:
    model = Model()
    tasks = [await model.begin("low", priority="low"), await model.begin("high", priority="high")]
    settings = QueueTable(cold_start_seconds=600.0, classes=("normal", "high"))
    model.cold.use(settings)
    model.is_there = True
    await asyncio.gather(*tasks)
    assert model.went == ["high", "low"]
