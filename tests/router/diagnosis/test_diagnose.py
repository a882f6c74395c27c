"""Diagnose: the answer made of attribution, the ranks' state and the load that was seen."""

import asyncio
from typing import Any

import pytest

from tests.router.pick.weighed import FakeRank, choice, option, placed
from warmpath.indexer.trust import Level, Trust
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.diagnosis.attribution import Attribution
from warmpath.router.diagnosis.diagnose import diagnose
from warmpath.router.load.bookings import Bookings
from warmpath.router.load.engine_metrics import Observed
from warmpath.router.load.table import LoadTable
from warmpath.router.pods.table import Pod, Status

NOW = 1000.0
COLD = Trust(Level.COLD, "keyspace: they differ", 5.0)


def loads() -> LoadTable:
    bookings = Bookings(expire_after=600.0, most=10)
    return LoadTable(bookings, stale_seconds=5.0)


def pod(name: str, model: str = "m", *, healthy: bool | None = None, shared: str = "") -> Pod:
    rank: Any = FakeRank(name)
    return Pod(name, f"{name}:8000", model, (rank,), Status(healthy), shared=shared)


def silent(status: Status, trust: Trust | None = None, shared: str = "") -> Pod:
    """Return a pod whose events do not come."""
    one = pod("a", shared=shared)
    one.status = status
    rank: Any = one.ranks[0]
    rank.is_connected = False
    if trust is not None:
        rank.believe(trust)
    return one


def told(
    *pods: Pod,
    model: str = "",
    attribution: Attribution | None = None,
    table: LoadTable | None = None,
    now: float = NOW,
) -> pb.DiagnoseResponse:
    attributed = attribution or Attribution()
    return asyncio.run(diagnose(model, pods, attributed, table or loads(), clock=lambda: now))


def why_not_ready(one: Pod) -> str:
    [found] = [finding.text for finding in told(one).findings if finding.kind == "ready"]
    return found


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (Status(healthy=True, looked_at=9.0), "its events are not connected (no connection), so that"),
        (Status(healthy=False, reason="/health answers 503"), "it is not ready: /health answers 503; no"),
    ],
)  # fmt: skip
def test_why_a_pod_is_not_ready_names_its_health_only_where_that_is_bad(
    status: Status, said: str
) -> None:
    found = why_not_ready(silent(status, Trust(Level.STALE, "no connection", 5.0)))
    assert found.startswith(said)
    assert ("`warmpath doctor --config FILE` say more" in found) == bool(status.healthy)


@pytest.mark.parametrize(("shared", "lines"), [("", "the pod"), ("redis://10.0.0.9:6379", "Redis")])
def test_a_pod_without_events_is_explained_by_the_lines_on_how_it_is_followed(
    shared: str, lines: str
) -> None:
    found = why_not_ready(silent(Status(healthy=True, looked_at=9.0), shared=shared))
    assert f"The lines on {lines} in `warmpath doctor --config FILE` say more" in found


@pytest.mark.parametrize("shared", ["", "redis://10.0.0.9:6379"])
def test_a_pod_whose_publisher_refuses_the_router_is_not_explained_by_lines_on_connections(
    shared: str,
) -> None:
    refused = silent(Status(healthy=True, looked_at=9.0), COLD, shared)
    found = why_not_ready(refused)
    assert "doctor --config" not in found
    assert found.endswith("its publisher refuses this router, as the finding hash-seed says")
    assert "hash-seed" in {one.kind for one in told(refused).findings}


def test_rows_shadows_and_findings_are_told_by_model() -> None:
    attribution = Attribution()
    for model in ("m", "n"):
        made = choice(option("a", 800))
        one = placed(made, model=model)
        attribution.picked(one, made)
        attribution.found_cached(one, 640, None)
        shadow = placed(made, model=model, shadow=True)
        attribution.picked(shadow, made)
    pods = pod("a"), pod("a", "n")
    assert [row.model for row in told(*pods, attribution=attribution).attributions] == ["m", "n"]
    of_one = told(*pods, model="m", attribution=attribution)
    assert [*of_one.attributions] == [
        pb.Attribution(
            pod="a", model="m", requests=1, prompt_tokens=1600, available_tokens=800, captured_tokens=800,
            average_tokens=800, reported_requests=1, reported_prompt_tokens=1600, predicted_tokens=800,
            delivered_tokens=640,
        )
    ]  # fmt: skip
    assert not of_one.findings


def test_events_in_the_open_are_told_once_a_model() -> None:
    pods = [pod("a"), pod("b"), pod("c", "n")]
    for one in pods[:2]:
        one.exposed = f"tcp://{one.id}:5557"
    [found] = told(*pods).findings
    assert (found.model, found.pod, found.kind) == ("m", "", "plain-text")
    assert "events of 2 pods" in found.text
    assert "pod a from tcp://a:5557" in found.text


def test_a_load_counts_as_told_while_it_is_fresh() -> None:
    table = loads()
    table.observe("a", 0, Observed(running=1, waiting=0, kv_usage=0.1, at=NOW))
    one = pod("a", healthy=True)
    assert not told(one, table=table, now=NOW + 1).findings
    (found,) = told(one, table=table, now=NOW + 60).findings
    assert (found.pod, found.model, found.kind) == ("a", "m", "load")


@pytest.mark.parametrize("level", [Level.DEGRADED, Level.STALE])
def test_a_ranks_trust_is_looked_at(level: Level) -> None:
    ill = pod("a")
    ill.ranks[0].believe(Trust(level, "a gap", 5.0))
    assert [(one.pod, one.kind) for one in told(ill, pod("b")).findings] == [("a", "trust")]


def test_the_models_median_is_what_a_slow_pod_is_compared_with() -> None:
    attribution = Attribution()
    for name in ("a", "b", "c"):
        made = choice(option(name))
        attribution.picked(placed(made), made)
        row = attribution.row(name, "m")
        assert row is not None
        row.evidence.factors[0] = 3.0 if name == "c" else 1.1
    found = told(*map(pod, "abc"), attribution=attribution).findings
    assert [(one.pod, one.kind) for one in found] == [("c", "calibration")]
    assert "2.7 times" in found[0].text


def test_a_pod_that_is_followed_through_the_shared_index_is_told_of_it() -> None:
    ill = pod("a", shared="redis://h:1 under prefix 'x'")
    ill.ranks[0].believe(Trust(Level.STALE, "the shared index: refused", NOW - 20))
    (found,) = told(ill).findings
    assert (found.pod, found.kind) == ("a", "shared-index")
    assert "redis://h:1 under prefix 'x'" in found.text
