"""The chart and the overlay bring the rules, the dashboard and the reading of metrics as the same objects."""

import json
import re

import pytest
import yaml

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
)
from tests.deploy.promql import read

pytestmark = needs_helm

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
    assert "replicas" not in only(chart("--set", "replicas=null"), "Deployment")["spec"]
    [keda] = objects((DEPLOY / "examples" / "keda.yaml").read_text())
    assert keda["spec"]["scaleTargetRef"]["name"] == only(chart(), "Deployment")["metadata"]["name"]


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
