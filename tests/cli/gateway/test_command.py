"""`warmpath gateway` without Envoy's traffic: its options, addresses, program, configuration and followed pods.

The configurations are golden files, which the real Envoy accepts; the answers of the followed router are scripted.
"""

import asyncio
import json
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.conftest import Output
from tests.servers.certificates import Authority
from tests.servers.envoy import BINARY
from warmpath.cli.gateway.bootstrap import (
    TEMPLATE,
    AddressError,
    GatewayDescription,
    address_of,
    bootstrap,
    write_all,
)
from warmpath.cli.gateway.command import follow
from warmpath.cli.gateway.process import PROGRAM, NoEnvoyError, find_envoy
from warmpath.cli.tls_options import OptionError
from warmpath.client.failure import CallError
from warmpath.lab.local.gateway import main
from warmpath.process.address import HostPort
from warmpath.process.tls import TlsPaths
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.calls.server import limits_of
from warmpath.router.config.schema import Config
from warmpath.router.endpoint_picker import protocol

POD = "--pod=10.0.0.1:8000"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--pod=pod-1:8000"], "--pod: pod-1:8000 is not an IP address and a port"),
        (["--pod=10.0.0.1"], "--pod: '10.0.0.1' is not host:port"),
        (["--pod=10.0.0.1:0"], "--pod: 10.0.0.1:0 is not an IP address and a port"),
        ([POD] * 4097, "--pod: at most 4096"),
        ([POD, "--router=here"], "--router: 'here' is not host:port"),
        ([POD, "--listen=localhost:80"], "--listen: localhost:80 is not an IP address"),
        ([POD, "--listen=0.0.0.0:80"], "--listen: 0.0.0.0:80 lets other machines in"),
        ([POD, "--max-body-bytes=0"], "--max-body-bytes: must be from 1 to 1073741824"),
        ([POD, "--tls-cert=a"], "--tls-cert and --tls-key: give both or none"),
        ([POD, "--tls-cert=a", "--tls-key=b"], "--tls-cert: needs --tls-ca"),
        ([POD, "--token-file=a"], "--token-file: Envoy cannot send a token"),
        (["--simulate=65"], "--simulate: must be from 1 to 64"),
        (["--simulate=-1"], "--simulate: must be from 1 to 64"),
        (["--simulate=1", POD], "--pod: does not go with --simulate"),
        (["--simulate=1", "--router=a:1"], "--router: does not go with --simulate"),
        (["--simulate=1", "--router=127.0.0.1:7400"], "--router: does not go with --simulate"),
        ([POD, "--out=out"], "--out: only --engine, --config and --simulate write there"),
        (["--engine=a:1", "--simulate=1"], "--simulate: does not go with --engine or --config"),
        (["--engine=https://a:1"], "--engine: https://a:1: Envoy calls engines without TLS here"),
        (["--engine=a:1", POD], "--pod: does not go with --engine or --config"),
        (
            ["--engine=a:1", "--config=a"],
            "--config: does not go with --engine, --engines-file or --pods",
        ),
        (["--api-key-file=a"], "--api-key-file: needs --engine, --engines-file or --pods"),
        (["--engine=a:1", "--api-key-file=a"], "--api-key-file: "),
        (["--simulate=1", "--tls-ca=a"], "--tls-ca: does not go with --simulate"),
        (["--simulate=1", "--print-config"], "--print-config: does not go with --simulate"),
        (["--simulate=1", "--listen=[::]:80"], "--listen: [::]:80 lets other machines in"),
    ],
)
def test_a_wrong_option_is_named(options: list[str], message: str, output: Output) -> None:
    assert main(options) == 2
    assert message in output.err()


def test_the_configuration_is_printed_without_an_envoy_or_a_router(
    output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    options = [
        POD, "--pod=[fd00::1]:1", "--router=router:7400", "--listen=0.0.0.0:80", "--insecure",
        "--failure-mode=fail-open", "--tls-ca=/tls/ca.pem", "--access-log", "--print-config",
    ]  # fmt: skip
    assert main(options) == 0
    expected = GatewayDescription(
        listen=HostPort("0.0.0.0", 80), router=HostPort("router", 7400),
        pods=[HostPort("10.0.0.1", 8000), HostPort("fd00::1", 1)], failure_mode="fail-open",
        router_tls=TlsPaths(Path("/tls/ca.pem")), logs_requests=True,
    )  # fmt: skip
    assert output.json() == bootstrap(expected)


def test_a_router_that_is_away_cannot_tell_its_pods(held_port: int, output: Output) -> None:
    assert main([f"--router=127.0.0.1:{held_port}"]) == 3
    assert "no router answers" in output.err()


def test_a_name_of_all_pods_is_looked_up_by_an_envoy_of_ones_own(output: Output) -> None:
    words = ["--router=routers:7400", "--pod=engines:8000"]
    assert main([*words, "--print-config"]) == 0
    pods = json.loads(output.out())["static_resources"]["clusters"][0]
    assert (pods["type"], pods["dns_refresh_rate"]) == ("STRICT_DNS", "1s")
    assert main(words) == 2
    assert "--pod: engines:8000 is not an IP address and a port" in output.err()


def test_without_an_envoy_the_command_says_how_to_get_one(tmp_path: Path, output: Output) -> None:
    assert main([POD, f"--envoy={tmp_path / 'none'}"]) == 2
    assert "--envoy: " in output.err()


GOLDEN = Path(__file__).parent / "golden"
PLAIN = GatewayDescription(
    listen=HostPort("127.0.0.1", 8000),
    router=HostPort("127.0.0.1", 7400),
    pods=[HostPort("10.0.0.1", 8000), HostPort("fd00::2", 8001)],
)
FULL = GatewayDescription(
    listen=HostPort("::1", 0), router=HostPort("router.example", 7400),
    pods=[HostPort("10.0.0.1", 8000)], failure_mode="fail-open",
    router_tls=TlsPaths(Path("/tls/ca.pem"), Path("/tls/cert.pem"), Path("/tls/key.pem")),
    folder=Path("/run/envoy"), logs_requests=True, body_bytes=4,
)  # fmt: skip


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
    names += protocol.BOOKING, protocol.ROUTER, protocol.TOLD
    assert [name for name in names if f'"{name}"' not in text] == []


def test_its_limits_fit_the_routers_own() -> None:
    config, fields = Config(models=[]), bootstrap(PLAIN)["static_resources"]
    filters = fields["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    [plain, full] = (
        one["typed_config"] for one in filters["http_filters"] if ".ext_" in one["name"]
    )
    retries = filters["route_config"]["virtual_hosts"][0]["routes"][0]["route"]["retry_policy"]
    of_routers = (one["typed_extension_protocol_options"] for one in fields["clusters"][1:])
    [http2], [http1] = (one.values() for one in of_routers)
    streams = http2["explicit_http_config"]["http2_protocol_options"]["max_concurrent_streams"]
    limits = limits_of(config)
    assert PLAIN.body_bytes == config.limits.max_prompt_bytes
    assert plain["http_service"]["server_uri"]["timeout"] == "5s"
    assert full["extension_config"]["typed_config"]["message_timeout"] == "5s"
    assert http1["common_http_protocol_options"] == {"idle_timeout": "60s"}
    assert limits.idle_seconds > 60, "Envoy closes idle connections first"
    connections = fields["clusters"][2]["circuit_breakers"]["thresholds"][0]["max_connections"]
    assert connections < config.server.http2.max_connections
    assert config.endpoint_picker.pick_seconds < 5
    assert retries["num_retries"] <= config.endpoint_picker.fall_backs
    assert streams <= config.server.http2.max_streams


HOSTS = st.one_of(
    st.ip_addresses().map(str), st.from_regex(r"[a-z][a-z0-9-]{0,20}", fullmatch=True)
)


@given(HOSTS, st.integers(0, 65535))
def test_an_address_is_read_as_it_is_written(host: str, port: int) -> None:
    address = HostPort(host, port)
    assert address_of(str(address)) == address


@pytest.mark.parametrize(
    "text",
    ["", ":80", "host", "host:", "host:x", "1.2.3.4:65536", "::1:80", "[::1]", "[host]:80", "[]:1"],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(AddressError, match="is not host:port"):
        address_of(text)


@pytest.mark.parametrize(("host", "is_ip"), [("1.2.3.4", True), ("::1", True), ("pod-1", False)])
def test_a_name_is_no_ip_address(host: str, *, is_ip: bool) -> None:
    assert HostPort(host, 1).is_ip == is_ip


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_the_given_one_comes_first_then_the_path_then_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = tmp_path / "make" / PROGRAM, tmp_path / "pip" / PROGRAM
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(NoEnvoyError, match=r"pip install 'warmpath-router\[envoy\]'"):
        find_envoy(None, places)
    for place in reversed(places):
        program(place)
        assert find_envoy(None, places) == place
    on_path = program(tmp_path / "bin" / "envoy")
    assert find_envoy(None, places) == on_path
    given = program(tmp_path / "my-envoy")
    assert find_envoy(given, places) == given


def test_a_given_one_that_is_no_program_is_refused(tmp_path: Path) -> None:
    (tmp_path / "envoy").write_text("not executable", encoding="utf-8")
    with pytest.raises(OptionError, match=r"--envoy: .* is not a program"):
        find_envoy(tmp_path / "envoy")


def test_the_environment_of_the_tests_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert find_envoy(None) == BINARY


ONE, TWO, SIX = HostPort("10.0.0.1", 80), HostPort("10.0.0.2", 80), HostPort("fd00::1", 81)
AWAY = CallError(grpc.StatusCode.UNAVAILABLE, "away")


class Router:
    """Gives the answers in turn, then ends the test's task."""

    def __init__(self, answers: Sequence[Sequence[str] | CallError]) -> None:
        self._answers = iter(answers)

    async def pods(self) -> pb.ListPodsResponse:
        answer = next(self._answers, None)
        if answer is None:
            raise asyncio.CancelledError
        if isinstance(answer, CallError):
            raise answer
        pods = [pb.Pod(id=f"pod-{number}", address=one) for number, one in enumerate(answer)]
        return pb.ListPodsResponse(pods=pods)


async def followed(
    *answers: Sequence[str] | CallError, known: Sequence[HostPort] = (ONE,)
) -> tuple[list[Sequence[HostPort]], list[str]]:
    """Return what is put and what is logged."""
    put: list[Sequence[HostPort]] = []
    told: list[str] = []
    client: Any = Router(answers)
    with pytest.raises(asyncio.CancelledError):
        await follow(client, [*known], put.append, told.append, pause=0)
    return put, told


async def test_pods_that_come_and_go_are_put_once() -> None:
    one, both = ["10.0.0.1:80"], ["10.0.0.2:80", "10.0.0.1:80"]
    put, told = await followed(one, both, both, one, ["[fd00::1]:81"])
    assert put == [[ONE, TWO], [ONE], [SIX]]
    assert told[-1] == "pods: [fd00::1]:81"


async def test_a_router_that_is_away_or_lists_no_pod_changes_nothing() -> None:
    assert await followed(AWAY, [], AWAY, ["10.0.0.1:80"]) == ([], [])


async def test_a_pod_that_envoy_cannot_reach_is_told_once_and_left_out() -> None:
    listed = ["10.0.0.1:80", "pod-2.example:80"]
    put, told = await followed(listed, listed, [*listed, "10.0.0.2:80"])
    assert put == [[ONE, TWO]]
    problem = "the router's pod pod-1: pod-2.example:80 is not an IP address and a port"
    assert [one.startswith(problem) for one in told] == [True, False]
