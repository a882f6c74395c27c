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
    pod_of,
    problems,
    restricted,
    run,
)
from tests.servers.certificates import Authority
from warmpath.cli.check_config import main as check_config
from warmpath.publisher.main import main as publish_main
from warmpath.router.config.read import load
from warmpath.router.pods import api_client

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
        assert rule["apiGroups"] == [group for group, _ in api_client.POOL_GROUPS]
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


def test_routers_may_ask_the_examples_engines_for_a_gateways_tokens(tmp_path: Path) -> None:
    config = load(lay_out(overlay("gateway"), tmp_path))
    [model] = config.models
    engine = objects((DEPLOY / "examples" / "vllm.yaml").read_text())
    service = only(engine, "Service")
    [port] = [one["port"] for one in service["spec"]["ports"] if one["name"] == "http"]
    assert not model.tokenizer_urls, "it asks the pods, as it does without any tokenizer"
    rules = only(overlay("gateway"), "NetworkPolicy")["spec"]["egress"]
    assert port in [one["port"] for rule in rules for one in rule["ports"]]


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
