"""One state of readiness: /readyz, gRPC's health by every name, and the metrics are views of it, and say why."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import aiohttp
import grpc
import grpc.aio
import pytest
from aiohttp.test_utils import TestClient, TestServer
from grpc_health.v1 import health_pb2, health_pb2_grpc
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.examples import examples
from tests.h2grpc.http2.hostile_client import Http2Client
from tests.lab.simworker.local_worker import LocalWorker
from tests.router.pick.weighed import FakeRank
from tests.router.pick_stand import pod
from tests.router.running_router import running_router
from warmpath.indexer.trust import Level, Trust
from warmpath.process.health import HealthService
from warmpath.router.access.entrance import Entrance
from warmpath.router.assemble.running import Running
from warmpath.router.assemble.scraped import readiness
from warmpath.router.pages.listener import Pages, http_app
from warmpath.router.pods.table import Pod, Status
from warmpath.router.prompt import texts
from warmpath.router.readiness import (
    ALWAYS,
    LISTENING,
    STAYING,
    Condition,
    Readiness,
    a_pod_is_well,
    pods_are_covered,
    tokenizers_are_loaded,
)

CHOSEN = ("pods", "index", "coverage", "tokenizers")
LOOKED_AT = ("pods", "coverage", "tokenizers")
NAMES = ("", "warmpath.v1.Router", "inference-extension")


class Views(RuleBasedStateMachine):
    """Conditions come and go; whoever asks, and however, gets the same answer."""

    def __init__(self) -> None:
        super().__init__()
        self.required: frozenset[str] = frozenset({"pods", "index"})
        self.holds = dict.fromkeys(CHOSEN, False) | {STAYING: True, LISTENING: False}
        self.readiness = Readiness(self.required)
        self.readiness.set("index", holds=False, reason="not copied yet")
        for name in LOOKED_AT:
            self.readiness.look(name, lambda name=name: Condition(self.holds[name], f"of {name}"))
        self.health = HealthService(dict.fromkeys(NAMES, self.readiness.ready))
        self.loop = asyncio.new_event_loop()
        app = http_app(self.readiness, Entrance([], Path()), Mock(spec_set=()), pages=Pages())
        self.client = self.loop.run_until_complete(self._started(app))

    async def _started(self, app: Any) -> Any:
        client = TestClient(TestServer(app))
        await client.start_server()
        return client

    def teardown(self) -> None:
        self.loop.run_until_complete(self.client.close())
        self.loop.close()

    @rule(names=st.sets(st.sampled_from(CHOSEN)))
    def others_are_required(self, names: set[str]) -> None:
        self.required = frozenset(names)
        self.readiness.require(names)

    @rule(name=st.sampled_from(LOOKED_AT), holds=st.booleans())
    def a_part_changes(self, name: str, holds: bool) -> None:
        self.holds[name] = holds

    @rule(name=st.sampled_from(["index", LISTENING]), holds=st.booleans())
    def a_condition_is_set(self, name: str, holds: bool) -> None:
        self.holds[name] = holds
        self.readiness.set(name, holds=holds, reason="as it was told")

    @rule()
    def the_end_is_asked_for(self) -> None:
        self.holds[STAYING] = False
        self.readiness.end()

    @invariant()
    def all_views_agree(self) -> None:
        expected = all(self.holds[name] for name in self.required.union(ALWAYS))
        assert self.readiness.ready() is expected
        for name in NAMES:
            question = health_pb2.HealthCheckRequest(service=name).SerializeToString()
            answer = health_pb2.HealthCheckResponse.FromString(self.health.check(question))
            assert (answer.status == answer.SERVING) is expected
        status, page = self.loop.run_until_complete(self._page())
        assert status == (200 if expected else 503)
        assert page["ready"] is expected
        told = page["conditions"]
        assert {name: one["holds"] for name, one in told.items()} == self.holds
        assert {name for name, one in told.items() if one["required"]} == self.required.union(
            ALWAYS
        )
        whole, parts = readiness(self.readiness)
        assert [sample.value for sample in whole.samples] == [expected]
        assert {one.labels["condition"]: one.value for one in parts.samples} == self.holds

    async def _page(self) -> tuple[int, Any]:
        async with self.client.get("/readyz") as response:
            return response.status, json.loads(await response.text())

    @invariant()
    def one_condition_can_be_left_out(self) -> None:
        for name in CHOSEN:
            others = self.required.union(ALWAYS) - {name}
            expected = all(self.holds[one] for one in others)
            assert self.readiness.ready(besides=name) is expected


TestViews = Views.TestCase
TestViews.settings = settings(max_examples=examples(200), stateful_step_count=20, deadline=None)


def test_conditions_that_are_not_required_are_not_looked_at_for_health_checks() -> None:
    def look() -> Condition:
        raise AssertionError

    readiness = Readiness(["pods"])
    readiness.look("coverage", look)
    readiness.look("pods", lambda: Condition(holds=True, reason=""))
    readiness.set(LISTENING, holds=True, reason="")
    assert readiness.ready()


def a_pod(name: str, level: Level = Level.EXACT, status: Status | None = None) -> Pod:
    rank = FakeRank(name)
    rank.trust = Trust(level, "because", 5.0)
    return Pod(name, f"{name}:80", "m", (rank,), status or Status(healthy=True))  # type: ignore[arg-type]


def test_a_pod_that_refuses_requests_is_not_well() -> None:
    draining = a_pod("a", status=Status(healthy=True, reason="/health answers 503", refuses=True))
    assert not a_pod_is_well([draining]).holds
    assert a_pod_is_well([draining, a_pod("b")]) == Condition(True, "1 of 2 pods are healthy")


def test_pods_that_are_only_late_keep_a_router_ready() -> None:
    late = a_pod("a", status=Status(healthy=False, reason="late", is_late=True))
    late.ranks[0].is_connected = True  # type: ignore[misc]
    assert not late.ready
    assert a_pod_is_well([late]).holds
    late.ranks[0].is_connected = False  # type: ignore[misc]
    assert not a_pod_is_well([late]).holds
    late.has_events = False
    assert a_pod_is_well([late]).holds


@pytest.mark.parametrize(("least", "holds"), [(0.5, True), (0.51, False), (1.0, False)])
def test_coverage_is_the_share_of_exact_views_of_the_pods_that_are_well(
    least: float, holds: bool
) -> None:
    down = a_pod("c", Level.COLD, Status(healthy=False, reason="no answer"))
    found = pods_are_covered([a_pod("a"), a_pod("b", Level.DEGRADED), down], [], least)
    assert found.holds is holds
    assert found.reason.startswith("the view of 1 of 2 well pods with events is exact")
    assert found.reason.endswith("b rank 0 is degraded: because") is not holds


def test_pods_without_events_and_fleets_without_pods_do_not_lack_coverage() -> None:
    blind = a_pod("a", Level.COLD)
    blind.has_events = False
    assert pods_are_covered([blind], [], 1.0).holds
    assert pods_are_covered([], [], 1.0).holds


def test_a_tokenizer_that_is_missing_is_named_with_the_reason() -> None:
    assert tokenizers_are_loaded(0, {}).holds
    found = tokenizers_are_loaded(2, {"demo": "no such folder"})
    assert found == Condition(False, "1 of 2 tokenizers are loaded; demo: no such folder")


SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
ASK = health_pb2.HealthCheckRequest(service="warmpath.v1.Router")


@dataclass
class Asked:
    """Both listeners of a router."""

    http: aiohttp.ClientSession
    running: Running
    health: Any

    async def ready(self) -> tuple[int, dict[str, dict[str, Any]]]:
        async with self.http.get(f"http://{self.running.http_address}/readyz") as response:
            return response.status, (await response.json())["conditions"]

    async def status(self) -> int:
        return int((await self.health.Check(ASK, timeout=10)).status)

    async def until(self, status: int) -> dict[str, dict[str, Any]]:
        """Wait until both say so; the test's own timeout bounds it."""
        while True:
            found, said = await self.ready()
            if found == (200 if status == SERVING else 503) and await self.status() == status:
                return said
            await asyncio.sleep(0.01)


@asynccontextmanager
async def asked(
    folder: Path, pods: str = "", *, keys: str = "", server: str = ""
) -> AsyncIterator[Asked]:
    """Run a router of one model, whose table has further `keys`."""
    tables = f'[probe]\ninterval-seconds = 0.02\n[[models]]\nname = "demo"\n{keys}\n{pods}'
    async with (
        running_router(folder, tables, server=server) as (router, channel),
        aiohttp.ClientSession() as http,
    ):
        stub = health_pb2_grpc.HealthStub(channel)  # type: ignore[no-untyped-call]
        yield Asked(http, router, stub)


async def test_a_router_without_pods_is_not_ready_and_says_so(tmp_path: Path) -> None:
    async with asked(tmp_path, "") as router:
        said = await router.until(NOT_SERVING)
    assert said["pods"] == {"required": True, "holds": False, "reason": "no pod is known"}
    assert said["listening"]["holds"]


async def test_a_router_all_of_whose_pods_are_down_is_not_ready_and_says_why(
    tmp_path: Path, held_port: int
) -> None:
    down = pod("pod-1", f"127.0.0.1:{held_port}", events="tcp://127.0.0.1:1")
    async with asked(tmp_path, down) as router:
        assert await router.status() == NOT_SERVING, "from the first moment"
        said = await router.until(NOT_SERVING)
        while "not connected" in said["pods"]["reason"]:
            said = await router.until(NOT_SERVING)
    assert said["pods"]["reason"].startswith("none of 1 pods is healthy; pod-1: ")
    assert str(held_port) in said["pods"]["reason"]


async def test_a_required_tokenizer_that_comes_late_makes_the_router_ready(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "RETRY_SECONDS", 0.02)
    required = 'ready = ["tokenizers"]'
    async with asked(tmp_path, keys='tokenizer = "late"', server=required) as router:
        status, said = await router.ready()
        assert status == 503
        assert said["tokenizers"]["reason"].startswith("0 of 1 tokenizers are loaded; demo: ")
        (tmp_path / "late").symlink_to(model_folder)
        while (await router.ready())[0] != 200:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("service", ["", "warmpath.v1.Router"])
async def test_who_watches_hears_of_pods_that_come_and_go(tmp_path: Path, service: str) -> None:
    async with LocalWorker() as worker:
        known = pod("pod-1", worker.address, events=worker.events, replay=worker.replay)
        async with asked(tmp_path, known) as router:
            watching = router.health.Watch(health_pb2.HealthCheckRequest(service=service))
            seen = [(await watching.read()).status]
            while seen[-1] != SERVING:
                seen.append((await watching.read()).status)
            assert (await router.until(SERVING))["pods"]["reason"] == "1 of 1 pods are healthy"
            await worker.post("/drain")
            assert (await watching.read()).status == NOT_SERVING
            said = await router.until(NOT_SERVING)
            assert "/health answers 503" in said["pods"]["reason"]
            watching.cancel()


async def test_a_watcher_that_reads_nothing_keeps_the_answer_from_nobody(tmp_path: Path) -> None:
    question = health_pb2.HealthCheckRequest().SerializeToString()
    async with asked(tmp_path) as router:
        address = router.running.address
        async with Http2Client(address, service="grpc.health.v1.Health") as mute:
            for _ in range(20):
                mute.call("Watch", question)
            # Their first status waits for a window that never opens.
            watching = router.health.Watch(ASK)
            assert (await watching.read()).status == NOT_SERVING
            for _ in range(5):
                assert await router.status() == NOT_SERVING
            watching.cancel()


@pytest.mark.parametrize("method", ["Check", "Watch"])
async def test_a_question_longer_than_any_name_is_refused(tmp_path: Path, method: str) -> None:
    question = health_pb2.HealthCheckRequest(service="x" * (1 << 20))
    async with asked(tmp_path) as router:
        call = getattr(router.health, method)(question, timeout=10)
        with pytest.raises(grpc.aio.AioRpcError, match="more than 4096") as refused:
            await (call if method == "Check" else anext(aiter(call)))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_an_unknown_service_is_said_to_be_unknown(tmp_path: Path) -> None:
    question = health_pb2.HealthCheckRequest(service="nothing")
    async with asked(tmp_path) as router:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await router.health.Check(question, timeout=10)
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        watching = router.health.Watch(question)
        told = await watching.read()
        assert told.status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        watching.cancel()
