"""The options of `warmpath gateway`: each mistake is named, and the configuration can be taken away."""

from pathlib import Path

import pytest

from tests.cli.conftest import Output
from warmpath.cli.gateway.bootstrap import GatewayDescription, bootstrap
from warmpath.lab.local.gateway import main
from warmpath.process.listen import HostPort
from warmpath.process.tls import TlsPaths

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
        ([POD, "--out=out"], "--out: only --simulate writes logs there"),
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
        listen=HostPort("0.0.0.0", 80),
        router=HostPort("router", 7400),
        pods=[HostPort("10.0.0.1", 8000), HostPort("fd00::1", 1)],
        failure_mode="fail-open",
        router_tls=TlsPaths(Path("/tls/ca.pem")),
        logs_requests=True,
    )
    assert output.json() == bootstrap(expected)


def test_a_router_that_is_away_cannot_tell_its_pods(held_port: int, output: Output) -> None:
    assert main([f"--router=127.0.0.1:{held_port}"]) == 3
    assert "no router answers" in output.err()


def test_without_an_envoy_the_command_says_how_to_get_one(tmp_path: Path, output: Output) -> None:
    assert main([POD, f"--envoy={tmp_path / 'none'}"]) == 2
    assert "--envoy: " in output.err()
