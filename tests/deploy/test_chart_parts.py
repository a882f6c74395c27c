"""The parts that the chart's values add, name and change, and pods that a restricted namespace admits."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.manifests import (  # fmt: skip
    CHART,
    DEPLOY,
    VERSIONS,
    chart,
    needs_helm,
    objects,
    only,
    pod_of,
    printed,
    problems,
    restricted,
    run,
)

pytestmark = needs_helm


def test_a_restricted_namespace_admits_the_pods_of_the_examples() -> None:
    pod = pod_of(objects((DEPLOY / "examples" / "vllm.yaml").read_text()), "StatefulSet")
    containers = [*pod["initContainers"], *pod["containers"]]
    assert [one["name"] for one in containers if not restricted(pod, one)] == []
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    assert all("emptyDir" in volume for volume in pod["volumes"])
    mounted = [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]]
    [home] = [one["value"] for one in pod["containers"][0]["env"] if one["name"] == "HOME"]
    assert home in mounted


@pytest.mark.parametrize(
    ("release", "name"),
    [
        ("7b.prod", "warmpath-7b-prod"),
        ("llama.3", "llama-3"),
        ("1" + "a" * 52, "warmpath-1" + "a" * 40),
        ("a" * 49 + ".b", "a" * 49),
    ],
)
def test_a_release_of_any_name_has_names_that_kubernetes_takes(release: str, name: str) -> None:
    words = ("--set", "autoscaling.enabled=true,monitoring.dashboard.enabled=true")
    found = objects(printed("helm", "template", release, CHART, *words))
    names = {one["metadata"]["name"] for one in found}
    assert names == {name, f"{name}-headless", f"{name}-dashboard"}
    for one in found:
        assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", one["metadata"]["name"])
    assert only(found, "Deployment")["metadata"]["labels"]["app.kubernetes.io/instance"] == release


def test_a_pool_has_the_values_ports_and_mode() -> None:
    values = "inferencePool.targetPorts={8000,8001},inferencePool.failureMode=FailClose"
    found = chart("--values", CHART / "examples" / "gateway.yaml", "--set", values)
    spec = only(found, "InferencePool")["spec"]
    assert spec["targetPorts"] == [{"number": 8000}, {"number": 8001}]
    assert spec["endpointPickerRef"]["failureMode"] == "FailClose"
    service = found[[one["kind"] for one in found].index("Service")]
    assert spec["endpointPickerRef"]["name"] == service["metadata"]["name"]
    assert spec["endpointPickerRef"]["port"]["number"] == service["spec"]["ports"][0]["port"]


def test_a_pool_is_named_once() -> None:
    found = chart(
        "--values", CHART / "examples" / "gateway.yaml", "--set", "inferencePool.name=other"
    )
    assert only(found, "InferencePool")["metadata"]["name"] == "other"
    assert 'inference-pool = "other"' in only(found, "ConfigMap")["data"]["warmpath.toml"]
    assert only(found, "Role")["rules"][1]["resourceNames"] == ["other"]


def test_a_pool_of_ones_own_is_read_and_not_made() -> None:
    found = chart(
        "--values", CHART / "examples" / "gateway.yaml", "--set", "inferencePool.create=false"
    )
    assert "InferencePool" not in {one["kind"] for one in found}
    assert only(found, "Role")["rules"][1]["resourceNames"] == ["demo"]


def test_a_router_may_list_llmds_objects_where_the_configuration_names_their_namespace(
    tmp_path: Path,
) -> None:
    config = '[[models]]\nname = "demo"\n[llmd]\n{}objects = "{{{{ .Release.Namespace }}}}"\n'
    rbac = {"namespaces": ["inference", "engines"]}
    for comment, expected in (("", {"inference"}), ("#", set())):
        file = tmp_path / f"values{comment}.json"
        file.write_text(json.dumps({"config": config.format(comment), "rbac": rbac}))
        allowed = {
            one["metadata"]["namespace"]: rule
            for one in chart("--values", file)
            if one["kind"] == "Role"
            for rule in one["rules"]
            if "inferencemodelrewrites" in rule["resources"]
        }
        assert set(allowed) == expected
        for rule in allowed.values():
            assert rule == {
                "apiGroups": ["llm-d.ai", "inference.networking.x-k8s.io"],
                "resources": ["inferenceobjectives", "inferencemodelrewrites"],
                "verbs": ["list"],
            }


def test_a_pod_takes_further_parts(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "nameOverride": "routers",
        "extraContainers": [{"name": "proxy", "image": "proxy:1"}],
        "initContainers": [{"name": "before", "image": "busybox:1"}],
        "service": {"extraPorts": [{"name": "proxy", "port": 443, "targetPort": 8443}]},
        "topologySpreadConstraints": [
            {"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}
        ],
        "podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None},
        "securityContext": {"capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}},
        "tracing": {"endpoint": "http://collector:4318", "ratio": 0.5},
    }
    file = tmp_path / "values.yaml"
    file.write_text(json.dumps(values))
    found = chart("--values", file)
    for version in VERSIONS:
        assert [problem for one in found for problem in problems(one, version)] == []
    pod = pod_of(found)
    assert [one["name"] for one in pod["initContainers"]] == ["before"]
    assert [one["name"] for one in pod["containers"]] == ["router", "proxy"]
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    [router, _] = pod["containers"]
    assert router["securityContext"]["capabilities"]["add"] == ["NET_BIND_SERVICE"]
    assert router["securityContext"]["readOnlyRootFilesystem"] is True
    env = {one["name"]: one["value"] for one in router["env"]}
    assert env["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector:4318"
    assert env["OTEL_TRACES_SAMPLER_ARG"] == "0.5"
    [spread] = pod["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"]["app.kubernetes.io/name"] == "warmpath"
    assert only(found, "Deployment")["metadata"]["name"] == "routers"
    for service in (one for one in found if one["kind"] == "Service"):
        assert service["spec"]["ports"][-1] == values["service"]["extraPorts"][0]
    spec = only(found, "NetworkPolicy")["spec"]
    assert {"port": 8443, "protocol": "TCP"} in spec["ingress"][0]["ports"]
    assert {"port": 4318, "protocol": "TCP"} in spec["egress"][-1]["ports"]


def test_the_notes_name_the_first_things_to_look_at() -> None:
    ended = run("helm", "install", "7b", CHART, "--namespace=inference", "--dry-run=client")
    assert ended.returncode == 0, ended.stderr
    notes = ended.stdout.partition("NOTES:\n")[2].strip().splitlines()
    assert 3 <= len(notes) <= 6
    for words in ("rollout status deployment/warmpath-7b", "warmpath pods", "warmpath doctor"):
        assert any(words in line for line in notes)


def test_a_router_gets_variables_of_its_environment() -> None:
    endpoint = {"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://collector:4318"}
    [router] = pod_of(chart("--set-json", f"env=[{json.dumps(endpoint)}]"))["containers"]
    assert router["env"] == [endpoint]


def test_a_router_logs_json_where_it_is_asked_to() -> None:
    [container] = pod_of(chart("--set", "logFormat=json"))["containers"]
    assert container["args"][-1] == "--log-format=json"


def test_labels_and_annotations_stand_beside_the_charts_own() -> None:
    found = chart("--set=podLabels.team=a,podAnnotations.note=b,monitoring.labels.release=c")
    meta = only(found, "Deployment")["spec"]["template"]["metadata"]
    assert {"team", "app.kubernetes.io/name"} <= set(meta["labels"])
    assert {"note", "checksum/config"} <= set(meta["annotations"])
