"""The chart and the overlays: what they render is Kubernetes', ours, and the same.

One file: all tests render one chart.
"""

import copy
import json
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.manifests import (  # fmt: skip
    CHART,
    DEPLOY,
    ROOT,
    VERSIONS,
    Object,
    chart,
    needs_helm,
    objects,
    only,
    overlay,
    printed,
    problems,
    run,
)
from tests.servers.certificates import Authority
from warmpath.cli.check_config import main as check_config
from warmpath.publisher.main import main as publish_main
from warmpath.router.config.read import load
from warmpath.router.pods import kubernetes

OVERLAYS = ("direct", "watch", "redis", "gateway")
EXAMPLES = (*OVERLAYS, "closed", "scaling")
CUSTOM = {
    "InferencePool", "InferenceObjective", "HTTPRoute", "ServiceMonitor", "PodMonitor",
    "PrometheusRule", "ScaledObject",
}  # fmt: skip
"""Kinds that Kubernetes itself does not have."""

pytestmark = needs_helm


def example(name: str) -> list[Object]:
    return chart("--values", CHART / "examples" / f"{name}.yaml")


def pod_of(found: list[Object], kind: str = "Deployment") -> Object:
    spec: Object = only(found, kind)["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", EXAMPLES)
def test_kubernetes_knows_every_field_of_the_chart(name: str, version: str) -> None:
    for one in example(name):
        if one["kind"] not in CUSTOM:
            assert problems(one, version) == [], f"{one['kind']} {one['metadata']['name']}"


@pytest.mark.parametrize("name", OVERLAYS)
def test_kubernetes_knows_every_field_of_an_overlay(name: str) -> None:
    for one in overlay(name):
        if one["kind"] not in CUSTOM:
            assert problems(one, VERSIONS[0]) == [], f"{one['kind']} {one['metadata']['name']}"


@pytest.mark.parametrize("file", sorted((DEPLOY / "examples").glob("*.yaml")), ids=lambda f: f.stem)
def test_kubernetes_knows_every_field_of_the_examples(file: Path) -> None:
    for one in objects(file.read_text()):
        if one["kind"] not in CUSTOM:
            assert problems(one, VERSIONS[0]) == [], f"{one['kind']} {one['metadata']['name']}"


def test_a_field_that_kubernetes_lacks_is_noticed() -> None:
    wrong = copy.deepcopy(only(chart(), "Deployment"))
    wrong["spec"]["template"]["spec"]["containers"][0]["livenessProb"] = {}
    assert problems(wrong, VERSIONS[0])


def shared(found: list[Object]) -> dict[tuple[str, str], Any]:
    """Return objects by kind and name, without what helm alone or kustomize alone says of them."""
    named = {}
    hashed = {
        one["metadata"]["name"]: re.sub(r"-[a-z0-9]{10}$", "", one["metadata"]["name"])
        for one in found
        if one["kind"] == "ConfigMap"
    }
    for one in copy.deepcopy(found):
        meta = one["metadata"]
        name = meta["name"] = hashed.get(meta["name"], meta["name"])
        # Helm gives its release's namespace to what does not name one.
        meta.pop("namespace", None)
        labels = meta.get("labels", {})
        for label in ("helm.sh/chart", "app.kubernetes.io/managed-by", "app.kubernetes.io/version"):
            labels.pop(label, None)
        if one["kind"] == "ConfigMap":
            # The generator copies no labels.
            meta.pop("labels", None)
            one["data"] = {key: tomllib.loads(text) for key, text in one["data"].items()}
        if one["kind"] == "Deployment":
            template = one["spec"]["template"]
            template["metadata"].pop("annotations", None)
            for volume in template["spec"]["volumes"]:
                if volume["name"] == "config":
                    held = volume["configMap"]["name"]
                    volume["configMap"]["name"] = hashed.get(held, held)
        named[one["kind"], name] = one
    return named


@pytest.mark.parametrize("name", OVERLAYS)
def test_an_overlay_and_the_chart_are_the_same(name: str) -> None:
    assert shared(overlay(name)) == shared(example(name))


def lay_out(found: list[Object], folder: Path) -> Path:
    """Write the files as the router's container sees them; return the configuration's."""
    pod = pod_of(found)
    places = {one["name"]: one["mountPath"] for one in pod["containers"][0]["volumeMounts"]}
    for volume in pod["volumes"]:
        place = folder / places[volume["name"]].removeprefix("/")
        place.mkdir(parents=True)
        if volume["name"] == "tls":
            names = ["tls.crt", "tls.key", "ca.crt"]
        elif volume["name"] == "tokens":
            names = [
                item["path"]
                for source in volume["projected"]["sources"]
                for item in source["secret"]["items"]
            ]
        elif volume["name"] == "secrets":
            names = ["redis-password"]
        else:
            names = []
        for name in names:
            (place / name).write_text("a-secret-of-some-length\n")
    file = folder / "etc/warmpath/config/warmpath.toml"
    (text,) = only(found, "ConfigMap")["data"].values()
    file.write_text(text)
    return file


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_router_takes_every_configuration(name: str, tmp_path: Path) -> None:
    file = lay_out(example(name), tmp_path)
    if name == "closed":
        authority = Authority(tmp_path)
        shown = authority.certificate("router")
        tls = tmp_path / "etc/warmpath/tls"
        for path, source in (
            ("tls.crt", shown.cert),
            ("tls.key", shown.key),
            ("ca.crt", authority.ca),
        ):
            (tls / path).write_bytes(source.read_bytes())
    assert check_config([str(file)]) == 0


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_role_is_what_the_pod_source_asks_for_and_no_more(name: str, tmp_path: Path) -> None:
    found = example(name)
    rules = only(found, "Role")["rules"]
    config = load(lay_out(found, tmp_path)) if name != "closed" else None
    assert rules[0] == {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}
    pools = (
        {one.inference_pool for one in config.pod_sets if one.inference_pool} if config else set()
    )
    assert [rule["resourceNames"] for rule in rules[1:]] == [[pool] for pool in pools]
    for rule in rules[1:]:
        assert rule["verbs"] == ["get"]
        assert rule["apiGroups"] == [group for group, _ in kubernetes.POOL_GROUPS]
    bound = only(found, "RoleBinding")
    assert bound["subjects"][0]["name"] == only(found, "ServiceAccount")["metadata"]["name"]
    assert bound["subjects"][0]["name"] == pod_of(found)["serviceAccountName"]


@pytest.mark.parametrize(
    ("values", "is_mounted"),
    [
        ("rbac.create=true", True),
        ("rbac.create=false", False),
        ("rbac.create=false,serviceAccount.create=false,serviceAccount.mountToken=true", True),
    ],
)
def test_a_token_is_mounted_for_the_charts_role_or_for_ones_own(
    values: str, is_mounted: bool
) -> None:
    found = chart("--set", values, "--set", "serviceAccount.name=own")
    pod = pod_of(found)
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == ("own", is_mounted)
    assert ("Role" in {one["kind"] for one in found}) == ("rbac.create=true" in values)


def restricted(pod: Object, container: Object) -> bool:
    """Return whether the pod security standard `restricted` admits a container."""
    outer, own = pod.get("securityContext", {}), container.get("securityContext")
    return (
        own is not None
        and bool(own.get("runAsNonRoot", outer.get("runAsNonRoot")))
        and own["allowPrivilegeEscalation"] is False
        and own["capabilities"] == {"drop": ["ALL"]}
        and own.get("seccompProfile", outer.get("seccompProfile")) == {"type": "RuntimeDefault"}
        and own.get("runAsUser", outer.get("runAsUser")) != 0
    )


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


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_router_is_restricted_and_ends_in_order(name: str) -> None:
    pod = pod_of(example(name))
    (container,) = pod["containers"]
    assert restricted(pod, container)
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert any(mount["mountPath"] == "/tmp" for mount in container["volumeMounts"])
    toml = only(example(name), "ConfigMap")["data"]["warmpath.toml"]
    server = tomllib.loads(toml)["server"]
    # Clients and nodes learn within this time that the pod is gone.
    assert server["drain-delay-seconds"] >= 5
    ends_within = server["drain-delay-seconds"] + server["drain-seconds"]
    assert pod["terminationGracePeriodSeconds"] >= ends_within + 5
    scheme = "HTTPS" if name == "closed" else "HTTP"
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["scheme"] == scheme


@pytest.mark.parametrize("name", EXAMPLES)
def test_everything_selects_the_routers(name: str) -> None:
    found = example(name)
    labels = only(found, "Deployment")["spec"]["template"]["metadata"]["labels"]
    selectors = [one["spec"]["selector"] for one in found if one["kind"] == "Service"]
    selectors += [
        only(found, "Deployment")["spec"]["selector"]["matchLabels"],
        only(found, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        only(found, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
    ]
    assert len(selectors) == 5
    assert all(selector.items() <= labels.items() for selector in selectors)


def test_another_configuration_starts_new_routers() -> None:
    def checksum(*options: str) -> str:
        template = only(chart(*options), "Deployment")["spec"]["template"]
        return str(template["metadata"]["annotations"]["checksum/config"])

    assert checksum() == checksum("--set", "replicas=3")
    assert checksum() != checksum("--set", "drainSeconds=20")


def test_a_router_gets_variables_of_its_environment() -> None:
    endpoint = {"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://collector:4318"}
    [router] = pod_of(chart("--set-json", f"env=[{json.dumps(endpoint)}]"))["containers"]
    assert router["env"] == [endpoint]


def test_a_router_reads_a_tokenizer_of_a_mounted_folder(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "guides" / "kubernetes.md").read_text()
    [shown] = re.findall(r"^```yaml\n(volumes:\n.*?)^```", page, re.DOTALL | re.MULTILINE)
    values = tmp_path / "values.yaml"
    values.write_text(shown)
    found = chart("--values", values)
    for version in VERSIONS:
        assert problems(only(found, "Deployment"), version) == []
    file = lay_out(found, tmp_path / "pod")
    assert check_config([str(file)]) != 0
    shutil.copytree(DEPLOY / "compose" / "tokenizer", tmp_path / "pod" / "etc/warmpath/models/demo")
    assert check_config([str(file)]) == 0


@pytest.mark.parametrize("name", ["watch", "closed"])
def test_a_configuration_may_begin_with_keys_that_belong_to_no_table(
    name: str, tmp_path: Path
) -> None:
    config = 'pods-file = "../pods/pods.toml"\n\n[[models]]\nname = "demo"\n'
    values = tmp_path / "values.yaml"
    values.write_text(json.dumps({"config": config}))
    found = chart("--values", CHART / "examples" / f"{name}.yaml", "--values", values)
    [text] = only(found, "ConfigMap")["data"].values()
    told = tomllib.loads(text)
    assert told["pods-file"] == "../pods/pods.toml"
    assert told["server"]["listen"] == "0.0.0.0:7400"
    assert len(told.get("clients", [])) == (2 if name == "closed" else 0)


def test_a_gateways_texts_have_the_tokenizer_of_the_examples_engines(tmp_path: Path) -> None:
    config = load(lay_out(overlay("gateway"), tmp_path))
    [model] = config.models
    engine = objects((DEPLOY / "examples" / "vllm.yaml").read_text())
    service = only(engine, "Service")
    [port] = [one["port"] for one in service["spec"]["ports"] if one["name"] == "http"]
    assert model.tokenizer_urls == [f"http://{service['metadata']['name']}:{port}"]
    rules = only(overlay("gateway"), "NetworkPolicy")["spec"]["egress"]
    assert port in [one["port"] for rule in rules for one in rule["ports"]]


def test_a_router_logs_json_where_it_is_asked_to() -> None:
    [container] = pod_of(chart("--set", "logFormat=json"))["containers"]
    assert container["args"][-1] == "--log-format=json"


@pytest.mark.parametrize(
    "values",
    [
        "replicas=1",
        "replicas=2",
        "autoscaling.enabled=true,autoscaling.create=false",
        "autoscaling.enabled=true,autoscaling.minReplicas=1",
    ],
)
def test_a_drain_takes_one_router_at_a_time_and_the_only_one_too(values: str) -> None:
    found = chart("--set", values)
    budget = only(found, "PodDisruptionBudget")
    # A number that has to stay would be wrong for one of these: the chart may not know how many there are.
    assert budget["spec"]["maxUnavailable"] == 1
    assert "minAvailable" not in budget["spec"]
    for version in VERSIONS:
        assert problems(budget, version) == []


def test_scaling_is_left_to_the_autoscaler() -> None:
    found = example("closed")
    assert "replicas" not in only(found, "Deployment")["spec"]
    target = only(found, "HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
    assert target["name"] == only(found, "Deployment")["metadata"]["name"]


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


def test_a_pod_takes_further_parts(tmp_path: Path) -> None:
    values = {
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
        assert service["spec"]["ports"][-1] == values["service"]["extraPorts"][0]  # type: ignore[index]
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


def test_tokens_go_in_plain_text_only_where_a_value_says_so(tmp_path: Path) -> None:
    values = (
        "clients[0].name=gateway",
        "clients[0].roles={score}",
        "clients[0].tokenSecret=warmpath-gateway",
        "tls.plainTextTokens=true",
    )
    file = lay_out(chart(*(f"--set={one}" for one in values)), tmp_path)
    assert check_config([str(file)]) == 0
    config = load(file)
    assert config.server.insecure
    assert [one.name for one in config.clients] == ["gateway"]


def test_labels_and_annotations_stand_beside_the_charts_own() -> None:
    found = chart("--set=podLabels.team=a,podAnnotations.note=b,monitoring.labels.release=c")
    meta = only(found, "Deployment")["spec"]["template"]["metadata"]
    assert {"team", "app.kubernetes.io/name"} <= set(meta["labels"])
    assert {"note", "checksum/config"} <= set(meta["annotations"])


def test_the_chart_is_linted() -> None:
    ended = run("helm", "lint", "--strict", CHART)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_chart_has_the_projects_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert about["version"] == about["appVersion"] == version
    image = pod_of(overlay("direct"))["containers"][0]["image"]
    assert image == pod_of(chart())["containers"][0]["image"] == f"warmpath-router:{version}"


def test_the_publisher_beside_vllm_has_known_options(capsys: pytest.CaptureFixture[str]) -> None:
    pod = pod_of(objects((DEPLOY / "examples" / "vllm.yaml").read_text()), "StatefulSet")
    (publisher,) = pod["initContainers"]
    assert publisher["restartPolicy"] == "Always"
    assert publisher["securityContext"]["readOnlyRootFilesystem"] is True
    words = [re.sub(r"\$\(\w+\)", "10.0.0.7", word) for word in publisher["args"]]
    assert words[0] == "publish"
    # A last option that is refused, after all the others were taken.
    with pytest.raises(SystemExit):
        publish_main([*words[1:], "--redis=redis://redis:6379", "--redis-lease-seconds=0"])
    assert "--redis-lease-seconds" in capsys.readouterr().err


def test_the_examples_fit_the_overlays(tmp_path: Path) -> None:
    engine = objects((DEPLOY / "examples" / "vllm.yaml").read_text())
    labels = only(engine, "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    for name in ("direct", "watch", "redis"):
        (pods,) = load(lay_out(overlay(name), tmp_path / name)).pod_sets
        key, _, value = pods.selector.partition("=")
        assert labels[key] == value
    gateway = objects((DEPLOY / "examples" / "gateway.yaml").read_text())
    pool = only(overlay("gateway"), "InferencePool")
    (pods,) = load(lay_out(overlay("gateway"), tmp_path / "gateway")).pod_sets
    assert pods.inference_pool == pool["metadata"]["name"]
    assert pool["spec"]["selector"]["matchLabels"].items() <= labels.items()
    services = {one["metadata"]["name"] for one in overlay("gateway") if one["kind"] == "Service"}
    assert pool["spec"]["endpointPickerRef"]["name"] in services
    (rule,) = only(gateway, "HTTPRoute")["spec"]["rules"]
    assert rule["backendRefs"][0]["name"] == pool["metadata"]["name"]
