"""The metrics of a router are the declared ones: their page, exemplars, certificates and ranks."""

import asyncio
import datetime as dt
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.openmetrics.exposition import generate_latest as open_metrics
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as open_metrics_families,
)
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar, Timestamp

from tests.indexer.followed import new_ingest, source
from tests.router.pick.picker_parts import Parts
from tests.router.service_stand import standing
from tests.servers.certificates import Authority
from warmpath.lab.pages.metrics import page
from warmpath.process.http_listener import http_listener
from warmpath.process.tls import ServerTls, TlsPaths, expiries
from warmpath.router.assemble.scraped import certificates, ranks
from warmpath.router.metrics.calls import Metrics
from warmpath.router.metrics.declared import DECLARED, metric, single
from warmpath.router.metrics.llmd import RENAMED, with_llmd_names
from warmpath.router.pages.listener import REST, MetricsPage
from warmpath.router.tracing.steps import Tracer

ROOT = Path(__file__).parents[3]
OPEN_METRICS = (
    "application/openmetrics-text;version=1.0.0;q=0.75,application/openmetrics-text;version=0.0.1;q=0.5,"
    "text/plain;version=0.0.4;q=0.25,*/*;q=0.1"
)
UNASKED = ("queue_", "shadow_log_", "shared_")
"""Beginnings of the metrics of parts that a router has only where they are configured."""


async def test_a_router_shows_exactly_the_declared_metrics(
    tmp_path: Path, model_folder: Path
) -> None:
    async with standing(tmp_path, model_folder, more='[llmd]\npool = "demo"\n') as stand:
        url = f"http://{stand.router.http_address}/metrics"
        async with aiohttp.ClientSession() as http:
            async with http.get(url) as answer:
                text = await answer.text()
            # As Prometheus asks; the parser is as strict as the format.
            async with http.get(url, headers={"Accept": OPEN_METRICS}) as answer:
                assert answer.content_type == "application/openmetrics-text"
                strict = list(open_metrics_families(await answer.text()))
            odd = {"Accept": "application/openmetrics-text;version=x"}
            async with http.get(url, headers=odd) as answer:
                assert (answer.status, answer.content_type) == (200, "text/plain")
    plain = {one.name for one in text_string_to_metric_families(text)}
    assert {one.name for one in strict} == plain
    families = text_string_to_metric_families(text)
    found = {one.name: one for one in families}
    of_llmd = {name for one in RENAMED for name in one.names}
    others = {name for name in found if not name.startswith("warmpath_")}
    assert {one for one in of_llmd ^ others if "flow_control" not in one} == set()
    seen = {
        name.removeprefix("warmpath_"): one
        for name, one in found.items()
        if name.startswith("warmpath_")
    }
    shown = {name for name in seen if not name.startswith(UNASKED)}
    asked = {name for name in DECLARED if not name.startswith(UNASKED)}
    assert shown == asked
    for name, family in seen.items():
        declared = DECLARED[name]
        assert (family.type, family.documentation) == (declared.kind, declared.text)
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(declared.labels), name


def test_names_of_llmd_tell_sums_and_means_of_our_samples() -> None:
    calls = Metrics()
    for method in ("Process", "/pick", "Score"):
        calls.answered(method, "OK", 0.02)
    calls.waited("high", "sent", 0.5)
    ranks = [("a", "0"), ("a", "1"), ("b", "0")]
    own = [
        metric("pod_ready", [(["a", "m"], 1), (["b", "m"], 1), (["c", "n"], 0)]),
        metric("rank_engine_waiting", [(rank, 3) for rank in ranks[:2]]),
        metric("rank_engine_kv_usage", [(ranks[0], 0.5), (ranks[2], 1)]),
        metric("rank_running", [(rank, 2) for rank in ranks]),
        metric("pick_requests", [(["a", "m"], 7), (["b", "m"], 8)]),
        metric("queue_waiting", [(["low"], 4)]),
        *calls.collect(),
    ]
    families = list(filter(None, with_llmd_names([*own, None], "p")))
    text = generate_latest(Exported(families)).decode()
    lines = {line for line in text.splitlines() if not line.startswith(("#", "warmpath_"))}
    assert lines >= {
        'inference_pool_ready_pods{name="p"} 2.0',
        'llm_d_epp_ready_endpoints{name="p"} 2.0',
        'inference_pool_average_queue_size{name="p"} 3.0',
        'inference_pool_per_pod_queue_size{model_server_pod="a",name="p"} 6.0',
        'inference_pool_average_kv_cache_utilization{name="p"} 0.75',
        'inference_objective_running_requests{model_name="m",target_model_name="m"} 6.0',
        'inference_objective_request_total{model_name="m",pod="b",target_model_name="m"} 8.0',
        'llm_d_epp_request_total{model_name="m",pod="a",target_model_name="m"} 7.0',
        "llm_d_epp_request_processing_duration_seconds_count 2.0",
        'llm_d_epp_request_processing_duration_seconds_bucket{le="0.025"} 2.0',
        'llm_d_epp_flow_control_queue_size{inference_pool="p",priority="low"} 4.0',
        'inference_extension_flow_control_request_queue_duration_seconds_sum{inference_pool="p",outcome="sent",priority="high"} 0.5',
    }
    nothing = [metric("pod_ready"), metric("rank_engine_waiting")]
    told = {one.name: one.samples for one in filter(None, with_llmd_names(nothing, "p"))}
    assert [one.value for one in told["inference_pool_ready_pods"]] == [0]
    assert told["inference_pool_average_queue_size"] == []


def test_the_page_has_what_is_declared() -> None:
    written = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    assert written == page(), "make docs"


def test_a_metric_that_is_not_declared_so_is_an_error() -> None:
    with pytest.raises(KeyError):
        single("unheard_of", 1)
    with pytest.raises(KeyError, match="histogram"):
        metric("request_seconds")


class Exported(Collector):
    """A registry of these metrics."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


STEPS = 50


class Clock:
    """Counts its readings as seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


class Stand:
    """A page, the readings of its parts, and the turns that another task had meanwhile."""

    def __init__(self) -> None:
        self.read = self.turns = self.turns_of_first = 0
        self.page = MetricsPage(self.steps, clock=Clock())

    def steps(self) -> Iterator[Metric | None]:
        self.read += 1
        before = self.turns
        for _ in range(STEPS):
            yield None
        if self.read == 1:
            self.turns_of_first = self.turns - before
        yield GaugeMetricFamily("readings", "Of the parts.", self.read)

    async def work(self) -> None:
        while True:
            self.turns += 1
            await asyncio.sleep(0)


async def test_other_tasks_have_a_turn_at_each_step_and_scrapers_who_wait_share_a_page() -> None:
    stand = Stand()
    app = web.Application()
    app.router.add_get("/metrics", stand.page.page)

    async def scraped(http: aiohttp.ClientSession, address: str, accept: str) -> str:
        headers = {"Accept": accept}
        async with http.get(f"http://{address}/metrics", headers=headers) as answer:
            assert answer.status == 200
            return await answer.text()

    async with (
        http_listener(app, "127.0.0.1:0", named="here") as address,
        aiohttp.ClientSession() as http,
        asyncio.TaskGroup() as tasks,
    ):
        working = tasks.create_task(stand.work())
        asked = (scraped(http, address, "text/plain") for _ in range(40))
        texts = await asyncio.gather(*asked)
        assert stand.read < 10
        assert stand.turns_of_first >= STEPS
        assert all("readings" in text for text in texts)
        newest = await scraped(http, address, "text/plain")
        assert f"readings {stand.read}.0" in newest
        assert "# EOF" in await scraped(http, address, "application/openmetrics-text")
        working.cancel()


async def test_a_page_is_read_after_it_was_asked_for_and_the_next_one_after_a_rest() -> None:
    begun: list[float] = []
    ended: list[float] = []

    def steps() -> Iterator[Metric | None]:
        begun.append(time.monotonic())
        yield None
        ended.append(time.monotonic())

    page = MetricsPage(steps, clock=time.monotonic)
    app = web.Application()
    app.router.add_get("/metrics", page.page)
    async with (
        http_listener(app, "127.0.0.1:0", named="here") as address,
        aiohttp.ClientSession(f"http://{address}") as http,
    ):
        for number in range(1, 4):
            async with http.get("/metrics") as answer:
                assert answer.status == 200
            assert len(begun) == number
    for after, before, at in zip(begun[1:], begun, ended, strict=False):
        assert after - before >= REST * (at - before)


TRACE = "0af7651916cd43dd8448eb211c80319c"


class Traced(Tracer):
    is_on = True

    def __init__(self) -> None:
        self.id = ""

    def trace_id(self) -> str:
        return self.id


def exemplars(metrics: Metrics, name: str) -> dict[str, Exemplar]:
    """Return the exemplars of a histogram, by the upper bound of their bucket."""
    families = open_metrics_families(open_metrics(metrics).decode())
    [family] = [one for one in families if one.name == name]
    return {one.labels["le"]: one.exemplar for one in family.samples if one.exemplar}


def test_a_bucket_has_the_last_trace_that_fell_into_it_with_its_time() -> None:
    tracer = Traced()
    metrics = Metrics(tracer, iter([10.0, 20.0, 30.0]).__next__)
    tracer.id = TRACE[::-1]
    metrics.answered("Score", "OK", 0.004)
    tracer.id = TRACE
    metrics.answered("Score", "OK", 0.003)
    metrics.stepped("match", 70.0)
    tracer.id = ""
    metrics.answered("Score", "OK", 0.002)
    labels = {"trace_id": TRACE}
    assert exemplars(metrics, "warmpath_request_seconds") == {
        "0.005": Exemplar(labels, 0.003, Timestamp(20, 0))
    }
    assert exemplars(metrics, "warmpath_step_seconds") == {
        "+Inf": Exemplar(labels, 70.0, Timestamp(30, 0))
    }
    assert TRACE not in generate_latest(metrics).decode()


def test_without_traces_there_are_no_exemplars() -> None:
    metrics = Metrics()
    metrics.answered("Score", "OK", 0.004)
    assert not exemplars(metrics, "warmpath_request_seconds")


SOON, LATER = (dt.datetime(year, 1, 1, tzinfo=dt.UTC) for year in (2190, 2191))


def told(tls: ServerTls) -> dict[tuple[str, str], float]:
    family = certificates({"server.tls": tls})
    return {(one.labels["table"], one.labels["file"]): one.value for one in family.samples}


def test_a_renewed_certificate_is_told_at_the_next_scrape(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    first = authority.certificate("first", ends=SOON)
    second = authority.certificate("second", ends=LATER)
    tls = ServerTls("server.tls", TlsPaths(cert=first.cert, key=first.key))
    assert told(tls) == {("server.tls", "cert"): SOON.timestamp()}
    first.cert.write_bytes(second.cert.read_bytes())
    first.key.write_bytes(second.key.read_bytes())
    tls.files.look()
    assert told(tls) == {("server.tls", "cert"): LATER.timestamp()}


def test_a_chain_ends_with_its_first_certificate_and_authorities_with_their_last(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    first = authority.certificate("first", ends=SOON)
    chain = first.cert.read_bytes() + authority.certificate("second", ends=LATER).cert.read_bytes()
    (tmp_path / "chain").write_bytes(chain)
    (tmp_path / "both").write_bytes(authority.ca.read_bytes() + chain)
    paths = TlsPaths(ca=tmp_path / "both", cert=tmp_path / "chain", key=first.key)
    pem = ServerTls("server.tls", paths).pem
    assert dict(expiries(pem)) == {"ca": LATER.timestamp(), "cert": SOON.timestamp()}


def test_a_certificate_that_has_ended_is_told_when_it_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    begins, ends = (dt.datetime(2025, month, 1, tzinfo=dt.UTC) for month in (1, 2))
    ended = Authority(tmp_path).certificate("ended", begins=begins, ends=ends)
    ServerTls("server.tls", TlsPaths(cert=ended.cert, key=ended.key))
    assert f"server.tls: cert {ended.cert} has ended, on 2025-02-01: connections" in caplog.text


def test_only_ranks_with_events_have_a_level_of_trust() -> None:
    ingest = new_ingest()
    ingest.add(source("followed", has_replay=False))
    ingest.add_blind("blind", 0)
    [trust] = [
        metric
        for metric in ranks(ingest, Parts(pods=0).loads)
        if metric and metric.name == "warmpath_rank_trust"
    ]
    found = {(one.labels["pod"], one.labels["level"]): one.value for one in trust.samples}
    assert {pod for pod, _ in found} == {"followed"}
    assert found["followed", "cold"] == 1.0
