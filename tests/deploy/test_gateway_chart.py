"""The chart's own gateway: an Envoy with the command's configuration, which ends in order."""

import asyncio
import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.manifests import (
    CHART,
    VERSIONS,
    Object,
    chart,
    needs_helm,
    only,
    problems,
    restricted,
    run,
)
from tests.servers.envoy import BINARY, Envoy

pytestmark = needs_helm

FILE = CHART / "gateway" / "envoy.json"
TLS = "/etc/warmpath/tls"
ON = "gateway.enabled=true"
CLOSED = ("--values", CHART / "examples" / "closed.yaml", "--set", "gateway.tlsSecretName=gateway")


def of_gateway(*options: str | Path) -> list[Object]:
    found = chart("--set", ON, *options)
    return [one for one in found if one["metadata"]["name"] == "warmpath-gateway"]


def envoy_of(*options: str | Path) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(
        only(of_gateway(*options), "ConfigMap")["data"]["envoy.json"]
    )
    return fields


def test_its_configuration_is_what_the_command_prints() -> None:
    words = ["--router=routers.example:7400", "--pod=engines.example:8000", "--listen=0.0.0.0:8000"]
    words += [f"--tls-ca={TLS}/ca.crt", f"--tls-cert={TLS}/tls.crt", f"--tls-key={TLS}/tls.key"]
    command = [sys.executable, "-m", "warmpath.cli", "gateway", *words]
    command += ["--insecure", "--print-config"]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert FILE.read_text() == printed.stdout, f"{' '.join(command[3:])} prints it"


@pytest.mark.parametrize("options", [(), CLOSED], ids=["plain", "closed"])
def test_only_addresses_tls_and_the_admin_interface_differ_from_the_command(
    options: tuple[str | Path, ...],
) -> None:
    found, printed = envoy_of(*options), json.loads(FILE.read_text())
    assert found.pop("admin")["address"]["socket_address"]["address"] == "127.0.0.1"
    pods, *routers = found["static_resources"]["clusters"]
    for cluster in (pods, *routers):
        [endpoint] = cluster.pop("load_assignment")["endpoints"][0]["lb_endpoints"]
        address = endpoint["endpoint"]["address"]["socket_address"]
        expected = ("vllm", 8000) if cluster is pods else ("warmpath-headless", 7400)
        assert (address["address"], address["port_value"]) == expected
    for cluster in routers:
        tls = cluster.pop("transport_socket", None)
        assert (tls is not None) == bool(options)
        if tls is not None:
            assert tls["typed_config"]["sni"] == "warmpath.inference.svc"
    for cluster in printed["static_resources"]["clusters"]:
        cluster.pop("load_assignment")
        cluster.pop("transport_socket", None)
    assert found == printed


@pytest.mark.parametrize("options", [(), CLOSED], ids=["plain", "closed"])
def test_envoy_accepts_its_configuration(options: tuple[str | Path, ...], tmp_path: Path) -> None:
    file = tmp_path / "envoy.json"
    fields = envoy_of(*options)
    for cluster in fields["static_resources"]["clusters"]:
        # The files of the Secret are not here.
        tls = cluster.get("transport_socket", {}).get("typed_config", {"common_tls_context": {}})
        tls["common_tls_context"].pop("tls_certificates", None)
        tls["common_tls_context"].get("validation_context", {}).pop("trusted_ca", None)
        tls["common_tls_context"].get("validation_context", {}).pop(
            "match_typed_subject_alt_names", None
        )
    file.write_text(json.dumps(fields))
    words = [BINARY, "--mode", "validate", "--config-path", file]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_knows_every_field_of_the_gateway(version: str) -> None:
    for options in ((), CLOSED):
        for one in of_gateway(*options):
            assert problems(one, version) == [], one["kind"]


def test_two_stay_while_one_goes_and_the_routers_let_them_in() -> None:
    found = chart("--set", ON)
    own = {one["kind"]: one for one in of_gateway()}
    spec = own["Deployment"]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["replicas"] == 2
    assert own["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1
    selectors = [own["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"]]
    selectors += [own["Service"]["spec"]["selector"], spec["selector"]["matchLabels"]]
    selectors += [own["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"]]
    assert all(one.items() <= labels.items() for one in selectors)
    # The routers' objects do not take the gateway's pods for their own.
    routers = [one for one in found if one["metadata"]["name"] != "warmpath-gateway"]
    for one in routers:
        if one["kind"] == "Service":
            assert not one["spec"]["selector"].items() <= labels.items()
    policy = only(routers, "NetworkPolicy")["spec"]
    admitted = [peer for rule in policy["ingress"] for peer in rule["from"]]
    assert any(
        (chosen := peer.get("podSelector", {}).get("matchLabels"))
        and chosen.items() <= labels.items()
        for peer in admitted
    )
    pod = spec["template"]["spec"]
    [container] = pod["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert restricted(pod, container)
    assert pod["terminationGracePeriodSeconds"] > 120 + 5


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (("tls.secretName=a",), "gateway.tlsSecretName: goes with tls.secretName"),
        (("gateway.tlsSecretName=a",), "gateway.tlsSecretName: goes with tls.secretName"),
        (
            (
                "tls.secretName=a", "gateway.tlsSecretName=b", "clients[0].name=c",
                "clients[0].roles={score}", "clients[0].tokenSecret=d",
            ),
            "gateway.enabled: with `clients` needs tls.clientCertificates=true",
        ),
        (("gateway.engines=vllm",), "/gateway/engines"),
        (("gateway.replica=1",), "the nearest is gateway.replicas"),
    ],
)  # fmt: skip
def test_values_that_do_not_go_together_are_refused(values: tuple[str, ...], said: str) -> None:
    ended = run("helm", "template", "w", CHART, "--set", ON, *(f"--set={one}" for one in values))
    assert ended.returncode != 0
    assert said in ended.stderr


def to_engine(fields: dict[str, Any], engine: int) -> dict[str, Any]:
    """Return a configuration for free ports, whose pod is an engine here, and that asks no router."""
    fields["admin"]["address"]["socket_address"]["port_value"] = 0
    resources = fields["static_resources"]
    [listener] = resources["listeners"]
    listener["address"] = {"socket_address": {"address": "127.0.0.1", "port_value": 0}}
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    manager["http_filters"] = manager["http_filters"][-1:]
    for cluster in resources["clusters"]:
        [endpoint] = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
        address = endpoint["endpoint"]["address"]["socket_address"]
        address |= {"address": "127.0.0.1", "port_value": engine}
    return fields


async def head_of(address: str, path: str) -> bytes:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/1.1\r\nhost: a\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    return head.lower()


async def test_a_request_under_way_ends_before_its_envoy_does(tmp_path: Path) -> None:
    script = tmp_path / "drain.sh"
    script.write_text(only(of_gateway(), "ConfigMap")["data"]["drain.sh"])
    [of_envoy] = only(of_gateway(), "Deployment")["spec"]["template"]["spec"]["containers"]
    may_answer, asked = asyncio.Event(), asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"/slow" in head:
            asked.set()
            await may_answer.wait()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    engine = server.sockets[0].getsockname()[1]
    args = of_envoy["args"]
    strategy = args[args.index("--drain-strategy") :][:2]
    async with server:
        with Envoy(json.dumps(to_engine(envoy_of(), engine)), *strategy) as envoy:
            get = partial(head_of, envoy.address)
            assert b"connection: close" not in await get("/")
            slow = asyncio.create_task(get("/slow"))
            await asked.wait()
            port = envoy.admin.rpartition(":")[2]
            words = of_envoy["lifecycle"]["preStop"]["exec"]["command"]
            assert words[:3] == ["bash", "/etc/envoy/drain.sh", "9901"]
            drain = await asyncio.create_subprocess_exec(
                "bash", "-x", str(script), port, "60", "0", stderr=asyncio.subprocess.PIPE
            )
            assert drain.stderr is not None
            # It looks again and again, as long as the request is under way.
            for _ in range(3):
                while b"+ sleep 0.2" not in (line := await drain.stderr.readline()):
                    assert line, "it ended before the request"
            assert b"connection: close" in await get("/")
            assert not slow.done()
            may_answer.set()
            assert b"200 ok" in await slow
            await drain.stderr.read()
            assert await drain.wait() == 0
