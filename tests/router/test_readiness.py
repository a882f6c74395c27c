"""One state of readiness: /readyz, gRPC's health by every name, and the metrics are views of it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from grpc_health.v1 import health_pb2
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.examples import examples
from tests.router.pick.weighed import FakeRank
from warmpath.indexer.trust import Level, Trust
from warmpath.process.health import HealthService
from warmpath.router.access.entrance import Entrance
from warmpath.router.assemble.scraped import readiness
from warmpath.router.pages.listener import Pages, http_app
from warmpath.router.pods.table import Pod, Status
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


class Counts:
    """Counts no refused callers."""

    def kept_out(self, method: str, reason: str) -> None:
        raise AssertionError(method, reason)


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
        app = http_app(self.readiness, Entrance([], Path()), Counts(), pages=Pages())
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


def pod(name: str, level: Level = Level.EXACT, status: Status | None = None) -> Pod:
    rank = FakeRank(name)
    rank.trust = Trust(level, "because", 5.0)
    return Pod(name, f"{name}:80", "m", (rank,), status or Status(healthy=True))  # type: ignore[arg-type]


def test_a_pod_that_refuses_requests_is_not_well() -> None:
    draining = pod("a", status=Status(healthy=True, reason="/health answers 503", refuses=True))
    assert not a_pod_is_well([draining]).holds
    assert a_pod_is_well([draining, pod("b")]) == Condition(True, "1 of 2 pods are healthy")


def test_pods_that_are_only_late_keep_a_router_ready() -> None:
    late = pod("a", status=Status(healthy=False, reason="late", is_late=True))
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
    down = pod("c", Level.COLD, Status(healthy=False, reason="no answer"))
    found = pods_are_covered([pod("a"), pod("b", Level.DEGRADED), down], [], least)
    assert found.holds is holds
    assert found.reason.startswith("the view of 1 of 2 well pods with events is exact")
    assert found.reason.endswith("b rank 0 is degraded: because") is not holds


def test_pods_without_events_and_fleets_without_pods_do_not_lack_coverage() -> None:
    blind = pod("a", Level.COLD)
    blind.has_events = False
    assert pods_are_covered([blind], [], 1.0).holds
    assert pods_are_covered([], [], 1.0).holds


def test_a_tokenizer_that_is_missing_is_named_with_the_reason() -> None:
    assert tokenizers_are_loaded(0, {}).holds
    found = tokenizers_are_loaded(2, {"demo": "no such folder"})
    assert found == Condition(False, "1 of 2 tokenizers are loaded; demo: no such folder")
