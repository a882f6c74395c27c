"""The configuration of Envoy: golden files, which the real Envoy accepts."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.servers.certificates import Authority
from tests.servers.envoy import BINARY
from warmpath.cli.gateway.bootstrap import TEMPLATE, GatewayDescription, bootstrap, write_all
from warmpath.process.listen import HostPort
from warmpath.process.tls import TlsPaths
from warmpath.router.config.schema import Config
from warmpath.router.endpoint_picker import protocol

GOLDEN = Path(__file__).parent / "golden"
PLAIN = GatewayDescription(
    listen=HostPort("127.0.0.1", 8000),
    router=HostPort("127.0.0.1", 7400),
    pods=[HostPort("10.0.0.1", 8000), HostPort("fd00::2", 8001)],
)
FULL = GatewayDescription(
    listen=HostPort("::1", 0),
    router=HostPort("router.example", 7400),
    pods=[HostPort("10.0.0.1", 8000)],
    failure_mode="fail-open",
    router_tls=TlsPaths(Path("/tls/ca.pem"), Path("/tls/cert.pem"), Path("/tls/key.pem")),
    folder=Path("/run/envoy"),
    logs_requests=True,
    body_bytes=4,
)


@pytest.mark.parametrize(("name", "gateway"), [("plain", PLAIN), ("full", FULL)])
def test_the_configuration_is_the_golden_one(name: str, gateway: GatewayDescription) -> None:
    golden = (GOLDEN / f"{name}.json").read_text(encoding="utf-8")
    assert json.dumps(bootstrap(gateway), indent=2) + "\n" == golden


def validated(folder: Path, gateway: GatewayDescription) -> "subprocess.CompletedProcess[str]":
    path = folder / "envoy.json"
    path.write_text(json.dumps(bootstrap(gateway)), encoding="utf-8")
    words = [BINARY, "--mode", "validate", "--config-path", path]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)


def test_envoy_accepts_it(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own = authority.certificate("gateway")
    full = replace(FULL, router_tls=TlsPaths(authority.ca, own.cert, own.key), folder=tmp_path)
    write_all(full, tmp_path)
    for gateway in (PLAIN, full, replace(full, folder=None)):
        ended = validated(tmp_path, gateway)
        assert ended.returncode == 0, ended.stderr


def test_its_names_are_those_of_the_router() -> None:
    text = TEMPLATE.read_text(encoding="utf-8")
    names = (*protocol.PICKERS_OWN, protocol.RANK, protocol.NAMESPACE, protocol.DETAILS_ATTRIBUTE)
    assert [name for name in names if f'"{name}"' not in text] == []


def test_its_limits_fit_the_routers_own() -> None:
    config, fields = Config(models=[]), bootstrap(PLAIN)["static_resources"]
    filters = fields["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    asking = next(one for one in filters["http_filters"] if one["name"].endswith("ext_proc"))
    retries = filters["route_config"]["virtual_hosts"][0]["routes"][0]["route"]["retry_policy"]
    of_router = fields["clusters"][1]["typed_extension_protocol_options"].values()
    [http2] = [one["explicit_http_config"]["http2_protocol_options"] for one in of_router]
    assert PLAIN.body_bytes == config.limits.max_prompt_bytes
    assert asking["typed_config"]["message_timeout"] == "5s"
    assert config.endpoint_picker.pick_seconds < 5
    assert retries["num_retries"] <= config.endpoint_picker.fall_backs
    assert http2["max_concurrent_streams"] <= config.server.http2.max_streams
