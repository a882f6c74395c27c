"""The rules and the dashboard name what routers and publishers really have; chart and overlay bring them alike."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from tests.deploy.manifests import (
    CHART,
    DEPLOY,
    ROOT,
    Object,
    chart,
    needs_helm,
    objects,
    only,
    overlay,
    read,
)
from tests.lab.simworker.local_worker import LocalWorker
from tests.router.shared_stand import WORKER, publisher, router, seen
from tests.servers.redis_server import RedisServer
from tests.waiting import until
from warmpath.indexer.trust import Level
from warmpath.lab.local.cluster import MODEL
from warmpath.proto.errors import Reason
from warmpath.publisher.assemble import publishing
from warmpath.router.metrics.declared import ROOMS
from warmpath.router.pages.listener import MetricsPage

pytestmark = needs_helm

RULES = yaml.safe_load((DEPLOY / "monitoring" / "alerts.yaml").read_text())
DASHBOARD = json.loads((DEPLOY / "monitoring" / "dashboard.json").read_text())
OF_PROMETHEUS = {"instance", "job", "namespace", "service"}
"""Labels that Prometheus gives to all that it reads, the last two by its operator."""
JOBS = {"warmpath", "warmpath-publisher"}


def rules() -> Iterator[dict[str, Any]]:
    for group in RULES["groups"]:
        yield from group["rules"]


def panels() -> Iterator[dict[str, Any]]:
    """Return the dashboard's panels, without the titles of rows."""
    return (panel for panel in DASHBOARD["panels"] if panel["type"] != "row")


def expressions() -> list[str]:
    shown = [target["expr"] for panel in panels() for target in panel["targets"]]
    return [rule["expr"] for rule in rules()] + shown


class Exported:
    """Series of registries: their labels, and kinds of events."""

    def __init__(self) -> None:
        self.labels: dict[str, set[str]] = {}
        self.kinds: set[str] = set()

    def look(self, registry: CollectorRegistry) -> None:
        """Add the series of a registry, those that have no samples yet, too."""
        for collector in registry._collector_to_names:
            for family in collector.collect():
                # A family of one of the client's own counters does not know its labels.
                self.add(family, family if hasattr(family, "_labelnames") else collector)

    def add(self, family: Metric, of: Any) -> None:
        """Add the series of a family, whose labels `of` knows."""
        labels = set(of._labelnames)
        for ending in ENDINGS.get(family.type, [""]):
            self.labels[family.name + ending] = labels
        if family.type == "histogram":
            self.labels[f"{family.name}_bucket"] = {*labels, "le"}
        if family.name in {"warmpath_events", "warmpath_publisher_events"}:
            self.kinds |= {sample.labels["kind"] for sample in family.samples}


ENDINGS = {"counter": ["_total"], "histogram": ["_sum", "_count"]}


@pytest.fixture
async def exported(
    tmp_path: Path, redis_server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> Exported:
    """Return the series of a router that uses all its parts, and of a publisher that writes to Redis."""
    registries: list[CollectorRegistry] = []

    def registry() -> CollectorRegistry:
        registries.append(CollectorRegistry())
        return registries[-1]

    monkeypatch.setattr("warmpath.publisher.assemble.CollectorRegistry", registry)
    scraped: list[Callable[[], Iterator[Metric | None]]] = []

    def page(steps: Callable[[], Iterator[Metric | None]], **options: Any) -> MetricsPage:
        scraped.append(steps)
        return MetricsPage(steps, **options)

    monkeypatch.setattr("warmpath.router.assemble.running.MetricsPage", page)
    url = redis_server.url
    exported = Exported()
    async with LocalWorker.of(WORKER) as worker, LocalWorker.of(WORKER) as other:
        more = f"""
            [[pods]]
            id = "other"
            model = "{MODEL}"
            address = "{other.address}"
            events = "{other.events}"
            [pick]
            queue = "on"
            """
        settings = publisher(worker, url, prefix, metrics_listen="127.0.0.1:0")
        async with (
            publishing(settings),
            router(tmp_path, url, prefix, seen(worker) + more, "share-bookings = true") as one,
        ):
            await until(one.is_believed)
            for each in registries:
                exported.look(each)
            for family in filter(None, scraped[0]()):
                exported.add(family, family)
    return exported


async def test_every_expression_names_series_labels_and_values_that_there_are(
    exported: Exported,
) -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    values = {
        "reason": set(Reason.keys()),
        "level": set(Level),
        "kind": exported.kinds,
        "outcome": {"sent", "refused", "left"},
        "job": JOBS,
    }
    for expression in expressions():
        found = read(expression)
        known = set(OF_PROMETHEUS)
        for one in found.selectors:
            if one.name in recorded or one.name == "up":
                labels = OF_PROMETHEUS
            else:
                assert one.name in exported.labels, expression
                labels = exported.labels[one.name] | OF_PROMETHEUS
            known |= labels
            for label, value in one.matchers:
                assert label in labels, expression
                if value != "$router":
                    assert set(value.split("|")) <= values[label], expression
        assert found.labels <= known, expression


def test_every_alert_has_a_section_of_the_runbook_and_every_section_is_found() -> None:
    page = ROOT / "docs" / "guides" / "operate.md"
    alerts = [rule for rule in rules() if "alert" in rule]
    linked = set()
    for rule in alerts:
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert rule["annotations"]["summary"].endswith(".")
        path, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert path == "docs/guides/operate.md"
        linked.add(anchor)
        [section] = [one for one in sections(page) if one.anchor == anchor]
        assert rule["alert"] in section.text, f"{section.title} does not name {rule['alert']}"
        assert "**Do**" in section.text
    assert {one.anchor for one in sections(page) if "**Do**" in one.text} == linked


def sections(page: Path) -> list["Section"]:
    """Return the sections of a page."""
    parts = re.split(r"^## (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return [Section(*pair) for pair in zip(parts[::2], parts[1::2], strict=True)]


@dataclass(frozen=True)
class Section:
    """A part of a page."""

    title: str
    text: str

    @property
    def anchor(self) -> str:
        """Return the link that GitHub makes of the title."""
        return re.sub(r"[^\w\- ]", "", self.title.lower()).replace(" ", "-")


def test_panels_have_places_of_their_own_and_ids_of_their_own() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


def test_every_panel_has_a_unit_and_a_description_and_asks_the_chosen_prometheus() -> None:
    variables = {one["name"] for one in DASHBOARD["templating"]["list"]}
    assert variables == {"datasource", "router"}
    for panel in panels():
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"


KINDS = {"ServiceMonitor", "PrometheusRule"}
"""Kinds of the Prometheus operator, which a cluster may lack."""
LATER = ("helm.sh/chart", "app.kubernetes.io/managed-by", "app.kubernetes.io/version")
"""Labels of helm alone."""


def monitored(*options: str) -> list[Object]:
    files = [word for name in ("watch", "monitoring") for word in ("--values", f"{name}.yaml")]
    words = [CHART / "examples" / one if one.endswith(".yaml") else one for one in files]
    return chart(*words, *options)


def dashboard_of(found: list[Object]) -> Object:
    [one] = [one for one in found if one["metadata"]["name"] == "warmpath-dashboard"]
    return one


def plain(one: Object) -> Object:
    """Return an object without what helm alone says of it."""
    labels = {key: value for key, value in one["metadata"]["labels"].items() if key not in LATER}
    return one | {"metadata": {"name": one["metadata"]["name"], "labels": labels}}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_overlay_has_the_chart_s_objects(kind: str) -> None:
    assert plain(only(overlay("monitoring"), kind)) == plain(only(monitored(), kind))


def test_both_have_the_dashboard_where_grafana_s_sidecar_finds_it() -> None:
    expected = json.loads((DEPLOY / "monitoring" / "dashboard.json").read_text())
    for found in (overlay("monitoring"), monitored()):
        one = dashboard_of(found)
        assert one["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert json.loads(one["data"]["dashboard.json"]) == expected


def test_the_rules_are_those_that_promtool_has_tried() -> None:
    rules = yaml.safe_load((DEPLOY / "monitoring" / "alerts.yaml").read_text())
    assert only(overlay("monitoring"), "PrometheusRule")["spec"] == rules


def test_alerts_link_to_the_address_that_is_given() -> None:
    found = monitored("--set", "monitoring.runbooks=https://runbooks.example/warmpath")
    for group in only(found, "PrometheusRule")["spec"]["groups"]:
        for rule in group["rules"]:
            link = rule.get("annotations", {}).get("runbook_url")
            assert link is None or re.match(r"https://runbooks\.example/warmpath#[a-z-]+$", link)


def test_one_service_is_read_and_its_job_has_the_name_of_the_rules() -> None:
    found = monitored()
    spec = only(found, "ServiceMonitor")["spec"]
    (missing,) = spec["selector"]["matchExpressions"]
    assert missing["operator"] == "DoesNotExist"
    (service,) = [
        one
        for one in found
        if one["kind"] == "Service"
        and spec["selector"]["matchLabels"].items() <= one["metadata"]["labels"].items()
        and missing["key"] not in one["metadata"]["labels"]
    ]
    assert service["metadata"]["labels"][spec["jobLabel"]] == "warmpath"
    (endpoint,) = spec["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert endpoint["honorLabels"], "or else a router's name stands in place of an engine's"


def test_a_closed_router_is_read_over_tls_with_a_token() -> None:
    found = chart("--values", CHART / "examples" / "closed.yaml")
    (endpoint,) = only(found, "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["scheme"] == "https"
    assert endpoint["tlsConfig"] == {
        "ca": {"secret": {"name": "warmpath-tls", "key": "ca.crt"}},
        "serverName": "warmpath.inference.svc",
    }
    token = endpoint["authorization"]["credentials"]
    assert token == {"name": "warmpath-monitor", "key": "token"}


def test_a_cluster_without_these_kinds_gets_none_of_them() -> None:
    assert not {one["kind"] for one in chart()} & KINDS
    assert not [one for one in chart() if one["metadata"]["name"] == "warmpath-dashboard"]


def test_autoscalers_ask_for_work_in_hand_that_the_rules_record() -> None:
    record = "warmpath:work_in_hand:mean2m"
    groups = yaml.safe_load((DEPLOY / "monitoring" / "alerts.yaml").read_text())["groups"]
    assert record in {rule.get("record") for group in groups for rule in group["rules"]}
    page = (ROOT / "docs" / "guides" / "kubernetes.md").read_text(encoding="utf-8")
    [block] = re.findall(r"^```yaml\n(rules:\n.*?)^```", page, re.MULTILINE | re.DOTALL)
    [rule] = yaml.safe_load(block)["rules"]["external"]
    assert rule["seriesQuery"] == record
    scaler = only(chart("--values", CHART / "examples" / "scaling.yaml"), "HorizontalPodAutoscaler")
    [external] = [one["external"] for one in scaler["spec"]["metrics"] if one["type"] == "External"]
    assert external["metric"]["name"] == rule["name"]["as"]
    [keda] = objects((DEPLOY / "examples" / "keda.yaml").read_text())
    [trigger] = keda["spec"]["triggers"]
    [asked] = read(trigger["metadata"]["query"]).selectors
    assert asked.name == record


def test_the_number_of_routers_can_be_left_to_another_autoscaler() -> None:
    found = chart("--set", "autoscaling.enabled=true,autoscaling.create=false")
    assert "replicas" not in only(found, "Deployment")["spec"]
    [keda] = objects((DEPLOY / "examples" / "keda.yaml").read_text())
    assert keda["spec"]["scaleTargetRef"]["name"] == only(found, "Deployment")["metadata"]["name"]


def test_engines_are_scaled_by_the_pods_that_their_work_needs() -> None:
    [keda] = objects((DEPLOY / "examples" / "scale-engines.yaml").read_text())
    [trigger] = keda["spec"]["triggers"]
    [asked] = read(trigger["metadata"]["query"]).selectors
    page = (ROOT / "docs" / "guides" / "scale-engines.md").read_text(encoding="utf-8")
    rules, _ = (
        yaml.safe_load(one)
        for one in re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    )
    [rule] = rules["rules"]["external"]
    needed = next(one for one in ROOMS["Demand for engines"] if one == "engine_pods_needed")
    assert asked.name == rule["seriesQuery"] == f"warmpath_{needed}"
    engines = only(objects((DEPLOY / "examples" / "vllm.yaml").read_text()), "StatefulSet")
    target = {"kind": "StatefulSet", "name": engines["metadata"]["name"]}
    assert target.items() <= keda["spec"]["scaleTargetRef"].items()


def test_publishers_are_read_at_the_port_that_they_have() -> None:
    [monitor] = objects((DEPLOY / "examples" / "publishers.yaml").read_text())
    engine = objects((DEPLOY / "examples" / "vllm.yaml").read_text())
    template = only(engine, "StatefulSet")["spec"]["template"]
    selector = monitor["spec"]["selector"]["matchLabels"]
    assert selector.items() <= template["metadata"]["labels"].items()
    [publisher] = template["spec"]["initContainers"]
    ports = {port["name"]: port["containerPort"] for port in publisher["ports"]}
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    assert f"--metrics-listen=0.0.0.0:{ports[endpoint['port']]}" in publisher["args"]
    let_in = [rule["ports"] for rule in only(engine, "NetworkPolicy")["spec"]["ingress"]]
    assert [{"port": ports[endpoint["port"]]}] in let_in
