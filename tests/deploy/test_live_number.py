"""The number of routers that a release keeps, read by helm from an API server that knows one Deployment."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.deploy.manifests import CHART, chart, needs_helm, objects, only, run

pytestmark = needs_helm

DEPLOYMENT = "/apis/apps/v1/namespaces/inference/deployments/warmpath"
AUTOSCALED = ("autoscaling.enabled=true",)
KEDA = (*AUTOSCALED, "autoscaling.create=false")

KINDS = {
    "v1": "Service ServiceAccount ConfigMap",
    "apps/v1": "Deployment",
    "autoscaling/v2": "HorizontalPodAutoscaler",
    "networking.k8s.io/v1": "NetworkPolicy",
    "policy/v1": "PodDisruptionBudget",
    "rbac.authorization.k8s.io/v1": "Role RoleBinding",
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep helm from the user's clusters and caches."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))


def group(version: str) -> dict[str, object]:
    """Return an API's group as a server lists it."""
    name, _, own = version.partition("/")
    return {"name": name, "versions": [{"groupVersion": version, "version": own}]}


@contextmanager
def api_server(replicas: int | None) -> Iterator[str]:
    """Serve a Deployment `warmpath` of so many replicas, or none; yield the server's address."""
    answers: dict[str, object] = {
        "/version": {"major": "1", "minor": "37", "gitVersion": "v1.37.2"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "groups": [group(one) for one in KINDS if one != "v1"]},
    }
    for version, kinds in KINDS.items():
        path = "/api/v1" if version == "v1" else f"/apis/{version}"
        named = {kind: {"name": f"{kind.lower()}s", "kind": kind} for kind in kinds.split()}
        resources = [one | {"namespaced": True, "verbs": ["get"]} for one in named.values()]
        answers[path] = {
            "kind": "APIResourceList", "groupVersion": version, "resources": resources,
        }  # fmt: skip
    if replicas is not None:
        answers[DEPLOYMENT] = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "warmpath", "namespace": "inference"},
            "spec": {"replicas": replicas},
        }

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answers.get(self.path.partition("?")[0])
            body = json.dumps(
                found or {"kind": "Status", "reason": "NotFound", "code": 404}
            ).encode()
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def rendered(live: int | None, *values: str) -> int | None:
    """Return the number that an upgrade of a release with so many live routers asks for."""
    with api_server(live) as address:
        words = ("helm", "template", "warmpath", CHART, "--namespace=inference", "--is-upgrade")
        options = (
            f"--kube-apiserver={address}",
            "--dry-run=server",
            "--disable-openapi-validation",
        )
        ended = run(*words, *options, *(f"--set={one}" for one in values))
    assert ended.returncode == 0, ended.stderr
    number: int | None = only(objects(ended.stdout), "Deployment")["spec"].get("replicas")
    return number


@pytest.mark.parametrize("values", [AUTOSCALED, KEDA])
@pytest.mark.parametrize("live", [6, 0])
def test_an_upgrade_with_autoscaling_keeps_the_live_number(
    values: tuple[str, ...], live: int
) -> None:
    assert rendered(live, *values) == live


def test_a_first_install_with_autoscaling_leaves_the_number_out() -> None:
    assert rendered(None, *AUTOSCALED) is None
    assert "replicas" not in only(chart("--set", AUTOSCALED[0]), "Deployment")["spec"]


def test_an_upgrade_without_autoscaling_asks_for_the_values_number() -> None:
    # After `kubectl scale` the page says to give the live number.
    assert rendered(6) == 2
    assert rendered(6, "replicas=6") == 6


def test_another_autoscaler_has_the_deployment_to_itself() -> None:
    kinds = {one["kind"] for one in chart(*(f"--set={one}" for one in KEDA))}
    assert "HorizontalPodAutoscaler" not in kinds
