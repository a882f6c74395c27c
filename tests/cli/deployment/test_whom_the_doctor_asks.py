"""Whom `warmpath doctor --config` asks: pods of all sources, the router near by; who gets a key."""

from pathlib import Path

import pytest
import zmq.asyncio

from warmpath.cli.deployment.check import Placed
from warmpath.cli.deployment.inspect import _find, _key, check_events
from warmpath.cli.doctor import _near
from warmpath.router.config.schema import Config, ModelSpec, PodSpec


@pytest.mark.parametrize(
    ("address", "https", "key"),
    [("h:1", False, "secret"), ("h:1", True, ""), ("h:2", False, ""), ("other:1", False, "")],
)
def test_the_key_is_sent_only_to_tokenizer_urls(
    tmp_path: Path, address: str, https: bool, key: str
) -> None:
    (tmp_path / "key").write_text("secret\n")
    model = ModelSpec("demo", tokenizer_urls=["http://h:1/"], tokenizer_key_file="key")
    pod = Placed(PodSpec(id="p", model="demo", address=address, https=https), "pods[0]")
    assert _key(pod, model, tmp_path) == key
    assert _key(pod, ModelSpec("demo"), tmp_path) == ""


def test_a_pods_own_key_is_sent_to_it(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret\n")
    pod = Placed(PodSpec(id="p", model="demo", address="h:1", key_file="key"), "pods[0]")
    assert _key(pod, ModelSpec("demo"), tmp_path) == "secret"


def test_pods_of_a_file_are_asked_and_a_source_without_an_answer_is_named(tmp_path: Path) -> None:
    here = PodSpec(id="a", model="demo", address="h:1")
    config = Config(models=[ModelSpec("demo")], pods=[here], pods_file="pods.toml")
    placed, problems = _find(config, tmp_path, 5.0)
    assert placed == [Placed(here, "pods[0]")]
    assert [(one.subject, one.verdict) for one in problems] == [("pods-file", "WRONG")]
    (tmp_path / "pods.toml").write_text(
        "".join(f'[[pods]]\nid = "{one}"\nmodel = "demo"\naddress = "h:2"\n' for one in "ab")
    )
    placed, problems = _find(config, tmp_path, 5.0)
    assert [(pod.spec.id, pod.spec.address, pod.table) for pod in placed] == [
        ("a", "h:1", "pods[0]"), ("b", "h:2", "pods-file")
    ]  # fmt: skip
    assert not problems


@pytest.mark.parametrize(
    ("table", "key"), [("pods[0]", "pods[0].watch"), ("pod-sets[1]", "pod-sets[1].watch-port")]
)
async def test_a_publisher_that_is_away_is_named_with_the_key_that_there_is(
    table: str, key: str, held_port: int
) -> None:
    spec = PodSpec(id="p", model="demo", address="h:1", watch=f"127.0.0.1:{held_port}")
    context = zmq.asyncio.Context()
    try:
        [found] = [one async for one in check_events(Placed(spec, table), context, 5.0)]
    finally:
        context.destroy(linger=0)
    assert found.verdict == "WRONG"
    assert found.change == f"start 'warmpath publish', or {key}"


@pytest.mark.parametrize("listen", ["0.0.0.0:7400", "[::]:7400", ":7400", "127.0.0.1:7400"])
def test_a_router_that_listens_everywhere_is_asked_on_loopback(listen: str) -> None:
    assert _near(listen) == "127.0.0.1:7400"
    assert _near("unix:/run/router") == "unix:/run/router"
