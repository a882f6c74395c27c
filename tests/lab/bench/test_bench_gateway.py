"""`python -m warmpath.lab.bench gateway`, through the real Envoy."""

import json
import shutil

import pytest

from warmpath.cli.gateway.bootstrap import Fields, GatewayDescription
from warmpath.lab.bench import __main__ as command
from warmpath.lab.bench.speed.gateway import SIZES, body_of
from warmpath.lab.bench.stand.fronts import answering, without_router
from warmpath.process.listen import HostPort

GATEWAY = GatewayDescription(
    HostPort("127.0.0.1", 0), HostPort("127.0.0.1", 7400), [HostPort("127.0.0.1", 8101)]
)


@pytest.mark.deep
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("h2load") is None, reason="h2load is not installed")
def test_what_the_router_adds_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["gateway", "--quick", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert [figure["unit"] for figure in figures] == ["us", "us", "req/s", "MiB", "MiB"]
    assert [figure["goal"] for figure in figures] == [1.5, 1.5, 0.5, None, None]
    assert all(figure["value"] > 0 and figure["ratio"] > 0 for figure in figures[:3])


@pytest.mark.parametrize("size", SIZES)
def test_bodies_have_the_size_that_is_said(size: int) -> None:
    body = body_of([*range(10_000, 30_000)], size)
    assert size - 16 < len(body) <= size
    assert json.loads(body)["prompt"][:2] == [10_000, 10_001]


def names(fields: Fields) -> list[str]:
    manager = fields["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]
    return [one["name"].rpartition(".")[2] for one in manager["typed_config"]["http_filters"]]


def test_envoy_alone_is_the_same_envoy_but_for_the_router() -> None:
    alone = without_router(GATEWAY)
    assert names(alone) == ["header_mutation", "buffer", "router"]
    assert [one["name"] for one in alone["static_resources"]["clusters"]] == ["pods"]
    assert names(answering(GATEWAY)) == ["buffer", "router"]
