"""`warmpath health` says with its exit status whether a process is fit, and why it is not."""

import asyncio
from pathlib import Path

import pytest

from tests import base_install
from tests.cli.conftest import Output
from tests.servers.certificates import Authority
from warmpath.cli.health import main
from warmpath.router.assemble.running import running
from warmpath.router.config.read import load

CONFIG = """
[server]
drain-delay-seconds = 0
listen = "127.0.0.1:0"
metrics-listen = "127.0.0.1:0"
{tls}

[[models]]
name = "demo"
{pods}
"""
POD = '[[pods]]\nid = "pod-1"\nmodel = "demo"\naddress = "127.0.0.1:9"\n[probe]\ninterval-seconds = 0\n'


async def health(*args: str) -> int:
    return await asyncio.to_thread(main, args)


def config(folder: Path, *, tls: str = "", pods: str = "") -> Path:
    file = folder / "router.toml"
    file.write_text(CONFIG.format(tls=tls, pods=pods))
    return file


async def test_a_router_with_a_pod_is_fit_by_both_ways(tmp_path: Path, output: Output) -> None:
    async with running(load(config(tmp_path, pods=POD)), tmp_path) as router:
        assert await health(f"http://{router.http_address}/readyz") == 0
        assert await health(f"grpc://{router.address}/warmpath.v1.Router") == 0
    by_page, by_grpc = output.out().split("ok\n")[1:]
    lines = by_page.splitlines()
    assert "holds  pods: 1 of 1 pods are healthy" in lines
    assert "holds  listening: gRPC listens" in lines
    assert {line.split(":")[0].split()[-1] for line in lines} == {
        "staying", "listening", "pods", "index", "coverage", "tokenizers"
    }  # fmt: skip
    assert not by_grpc


async def test_a_router_without_pods_is_unfit_and_says_why(tmp_path: Path, output: Output) -> None:
    async with running(load(config(tmp_path)), tmp_path) as router:
        assert await health(f"http://{router.http_address}/readyz") == 1
        assert "FAILS  pods: no pod is known" in output.err()
        assert await health(f"http://{router.http_address}/readyz", "--json") == 1
        found = output.json()
        assert (found["fit"], found["problem"]) == (False, "status 503")
        assert found["conditions"]["pods"] == {
            "required": True, "holds": False, "reason": "no pod is known"
        }  # fmt: skip
        assert await health(f"http://{router.http_address}/healthz") == 0
        assert await health(f"grpc://{router.address}/no.such.Service") == 1
    assert "NOT_FOUND" in output.err()


async def test_under_tls_the_certificate_is_checked(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    shown = authority.certificate("router")
    tls = f'[server.tls]\ncert = "{shown.cert}"\nkey = "{shown.key}"'
    async with running(load(config(tmp_path, tls=tls, pods=POD)), tmp_path) as router:
        port = router.http_address.rpartition(":")[2]
        page = f"https://127.0.0.1:{port}/readyz"
        call = f"grpc://127.0.0.1:{router.address.rpartition(':')[2]}/liveness"
        assert await health(page, "--tls-ca", str(authority.ca)) == 0
        assert await health(call, "--tls-ca", str(authority.ca)) == 0
        assert await health(page) == 1


@pytest.mark.parametrize("args", [["127.0.0.1:7401"], ["file:///etc/passwd"], ["--tls-cert", "x"]])
def test_what_cannot_be_asked_is_refused_before(args: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(args)
    assert ended.value.code == 2


def test_it_runs_without_the_routers_parts() -> None:
    ended = base_install.run(
        "from warmpath.cli.health import main; sys.exit(main(['grpc://127.0.0.1:9']))"
    )
    assert ended.returncode == 1
    assert "nothing listens there" in ended.stderr
