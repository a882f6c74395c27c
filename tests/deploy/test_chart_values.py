"""The chart's values: which are refused, with which words, and that names of digits stay names."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.manifests import CHART, VERSIONS, chart, needs_helm, only, problems, run

GATEWAY = ("clients[0].name=gateway", "clients[0].roles={score}")
"""A client, without what it is known by."""

POOL_B = 'config=[[models]]\n# inference-pool = "c"\n[[pod-sets]]\n  inference-pool = "b"'

pytestmark = needs_helm


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("image.repositry", "image.repositry: is no value of this chart; the nearest is image.repository"),
        ("minReplica", "minReplica: is no value of this chart; the nearest is autoscaling.minReplicas"),
        ("monitoring.serviceMonitor.intervall", "the nearest is monitoring.serviceMonitor.interval"),
        ("Replicas", "the nearest is replicas"),
        ("tls.xyzzy", "tls.xyzzy: is no value of this chart; there are clientCertificates, plainTextTokens, secretName"),
    ],
)  # fmt: skip
def test_an_unknown_value_is_refused_with_the_nearest_name(wrong: str, said: str) -> None:
    ended = run("helm", "template", "warmpath", CHART, "--set", f"{wrong}=1")
    assert ended.returncode != 0
    assert said in ended.stderr


def test_the_schema_has_every_value_of_the_chart() -> None:
    def paths(values: dict[str, Any], at: str = "") -> set[str]:
        return {f"{at}{key}" for key in values} | {
            path
            for key, of in values.items()
            for path in paths(of if isinstance(of, dict) else {}, f"{at}{key}.")
        }

    schema = json.loads((CHART / "values.schema.json").read_text())
    for path in paths(yaml.safe_load((CHART / "values.yaml").read_text())):
        found = schema
        for word in path.split("."):
            if "properties" not in found:
                break
            assert word in found["properties"], path
            found = found["properties"][word]


@pytest.mark.parametrize("name", ["config", "tmp", "tls", "tokens", "secrets"])
def test_a_volume_with_the_name_of_one_of_the_charts_is_refused(name: str) -> None:
    ended = run("helm", "template", "warmpath", CHART, "--set", f"volumes[0].name={name}")
    assert ended.returncode != 0
    assert f"volumes[0].name: {name} is a volume of the chart itself" in ended.stderr


@pytest.mark.parametrize("wrong", ["0", "0%"])
def test_a_budget_that_blocks_every_drain_is_refused(wrong: str) -> None:
    value = f"podDisruptionBudget.maxUnavailable={wrong}"
    ended = run("helm", "template", "warmpath", CHART, "--set", value)
    assert ended.returncode != 0
    assert "/podDisruptionBudget/maxUnavailable" in ended.stderr


@pytest.mark.parametrize(
    "wrong",
    [
        "replicas=two", "image.repositry=x", "drainSeconds=0", "image.digest=latest",
        "tls.clientCertificates=true", "config=none", "clients[0].name=a",
        # Kubernetes takes texts only here, and its error would not name the value.
        "podAnnotations.scraped=true", "podLabels.team=7", "nodeSelector.gpu=false",
        "service.annotations.port=80", "serviceAccount.annotations.a=1", "env[0].name=a,env[0].value=4318",
        "monitoring.labels.release=2", "monitoring.dashboard.labels.grafana_dashboard=1",
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_meant_is_refused(wrong: str) -> None:
    ended = run("helm", "template", "warmpath", CHART, "--set", wrong)
    assert ended.returncode != 0
    assert re.split(r"[.=\[]", wrong)[0] in ended.stderr


@pytest.mark.parametrize(
    "name",
    [
        "image", "image.pullPolicy", "replicas", "config", "tls", "drainDelaySeconds", "drainSeconds",
        "serviceAccount", "serviceAccount.create", "rbac", "service", "service.type", "podDisruptionBudget",
        "podDisruptionBudget.maxUnavailable", "autoscaling", "autoscaling.minReplicas",
        "autoscaling.maxReplicas", "autoscaling.cpuPercent", "networkPolicy", "monitoring", "monitoring.rules",
        "monitoring.serviceMonitor", "monitoring.serviceMonitor.interval", "monitoring.dashboard",
        "monitoring.runbooks",
    ],
)  # fmt: skip
def test_null_is_refused_by_name_where_the_chart_needs_a_value(name: str) -> None:
    ended = run("helm", "template", "warmpath", CHART, "--set", f"{name}=null")
    assert ended.returncode != 0
    assert f"missing property '{name.rpartition('.')[2]}'" in ended.stderr


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            (
                "tls.secretName=warmpath-tls",
                *GATEWAY,
                "clients[0].tokenSecret=a",
                "clients[1].name=gateway",
                "clients[1].roles={read}",
                "clients[1].tokenSecret=b",
            ),
            "clients[1].name: another client has the name gateway",
        ),
        (("tls.secretName=warmpath-tls", *GATEWAY, "clients[0].certificate=gateway.example"), "clients[0].certificate: needs tls.clientCertificates=true"),
        ((*GATEWAY, "clients[0].tokenSecret=warmpath-gateway"), "clients[0].tokenSecret: needs tls.secretName: without TLS the token is sent in plain"),
        (
            (
                "monitoring.serviceMonitor.enabled=true",
                "monitoring.serviceMonitor.tokenSecret=warmpath-monitor",
            ),
            "monitoring.serviceMonitor.tokenSecret: needs tls.secretName: without TLS",
        ),
        (
            (
                "monitoring.serviceMonitor.enabled=true",
                "tls.secretName=warmpath-tls",
                *GATEWAY,
                "clients[0].tokenSecret=warmpath-gateway",
            ),
            "monitoring.serviceMonitor.tokenSecret: is empty, and with `clients` only a token",
        ),
        (("autoscaling.enabled=true", "autoscaling.minReplicas=9"), "autoscaling.minReplicas: 9 is more than autoscaling.maxReplicas, 6"),
        (("inferencePool.create=true",), "inferencePool.name: is empty, and inferencePool.create needs one"),
        (("inferencePool.name=demo",), 'inferencePool.name: no pod set of `config` has inference-pool = "demo"'),
        (("inferencePool.name=a", POOL_B), 'config: a pod set has inference-pool = "b", but inferencePool.name is "a"'),
        ((POOL_B,), 'config: a pod set has inference-pool = "b", but inferencePool.name is ""'),
        (("service.extraPorts[0].name=grpc", "service.extraPorts[0].port=9000"), "service.extraPorts[0]: grpc at 7400 and http at 7401 are ports of the chart itself"),
        ((r"podLabels.app\.kubernetes\.io/name=other",), "podLabels: the chart gives app.kubernetes.io/name itself"),
        (("podAnnotations.checksum/config=none",), "podAnnotations: the chart gives checksum/config itself"),
        ((r"monitoring.labels.helm\.sh/chart=other",), "monitoring.labels: the chart gives helm.sh/chart itself"),
        ((r"monitoring.dashboard.labels.app\.kubernetes\.io/instance=other",), "monitoring.dashboard.labels: the chart gives app.kubernetes.io/instance itself"),
    ],
)  # fmt: skip
def test_values_that_contradict_each_other_are_refused_by_name(
    values: tuple[str, ...], said: str
) -> None:
    ended = run("helm", "template", "warmpath", CHART, *(f"--set={one}" for one in values))
    assert ended.returncode != 0
    assert said in ended.stderr


def test_names_that_yaml_would_read_as_numbers_stay_names(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "clients": [{"name": "123", "roles": ["read"], "tokenSecret": "456", "tokenKey": "7"}],
        "tls": {"secretName": "789"},
        "secretName": "1e3",
        "rbac": {"namespaces": ["555"]},
        "inferencePool": {"name": "42"},
        "config": '[[models]]\nname = "m"\n[[pod-sets]]\ninference-pool = "42"\n',
        "serviceAccount": {"name": "0123"},
        "priorityClassName": "77",
    }
    file = tmp_path / "values.yaml"
    file.write_text(json.dumps(values))
    for one in chart("--values", file, "--namespace", "2026"):
        assert problems(one, VERSIONS[-1]) == [], one["kind"]
    values["monitoring"] = {"serviceMonitor": {"enabled": True, "tokenSecret": "0456"}}
    other = tmp_path / "monitored.yaml"
    other.write_text(json.dumps(values))
    found = chart("--values", other)
    [endpoint] = only(found, "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["authorization"]["credentials"]["name"] == "0456"
    assert endpoint["tlsConfig"]["ca"]["secret"]["name"] == "789"
