"""Endpoints of Kubernetes: silent watches, lacking pods, pools, several ports, and renewed certificates."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.router.pods.test_kubernetes_watch import (
    LABELS,
    POOLED,
    ROLE,
    SELECTED,
    Latest,
    following,
    listed_again,
)
from tests.servers.api_server import ApiServer
from tests.servers.certificates import Authority
from tests.waiting import until
from warmpath.process.command_line import version
from warmpath.router.pods import api_access, kubernetes, watched
from warmpath.router.pods.inference_pool import ACTIVE_PORTS, InferencePool, active_ports, read_pool
from warmpath.router.pods.kubernetes import KubernetesSource


async def until_withheld(latest: Latest, wanted: Mapping[str, str]) -> None:
    """Wait until these pods and no others are found; each with the reason why it takes no requests."""
    await until(lambda: {name: one.withheld for name, one in latest.pods.items()} == wanted)


async def test_a_watch_that_is_silent_and_does_not_end_is_given_up_and_the_pods_are_listed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kubernetes, "WATCH_SECONDS", 0.05)
    monkeypatch.setattr(kubernetes, "OVERDUE_SECONDS", 0.01)
    async with ApiServer(ROLE) as server:
        server.is_silent = True
        async with following(server, SELECTED) as latest:
            await server.put("a", "1", **LABELS)
            await latest.until({"a": "1"})
            await server.delete("1")
            await server.put("b", "2", **LABELS)
            await latest.until({"b": "2"})
            trouble = latest.state.trouble
            assert trouble is not None
            assert trouble.problem.startswith(
                "watch pods: the API server did not end a watch of 1 s"
            )
            assert trouble.effect == kubernetes.LISTED
            server.is_silent = False
            # A watch that says something shows that it can be heard.
            await server.put("c", "3", **LABELS)
            await latest.until({"b": "2", "c": "3"})
            async with asyncio.timeout(120):
                while latest.state.trouble is not None:
                    await server.put("c", "3", **LABELS)
                    await asyncio.sleep(0.001)
    assert caplog.text.count("did not end a watch of 1 s") == 1


@pytest.mark.parametrize("is_silent", [False, True])
async def test_a_pool_whose_labels_change_is_followed_at_once(is_silent: bool) -> None:
    async with ApiServer(ROLE) as server, following(server, POOLED) as latest:
        await server.put("a", "1", app="vllm")
        await server.put("b", "2", app="v2")
        await latest.until({"a": "1"})
        server.is_silent = is_silent
        server.pool = {"app": "v2"}
        await latest.until({"b": "2"})
        server.pool = {"app": "nobody"}
        await latest.until({})


async def test_events_that_come_without_a_pause_do_not_hide_that_a_pool_has_changed() -> None:
    async with ApiServer(ROLE) as server, following(server, POOLED) as latest:
        await server.put("b", "2", app="v2")

        async def busy() -> None:
            while True:
                await server.put("a", "1", app="vllm")
                await asyncio.sleep(0)

        task = asyncio.ensure_future(busy())
        await latest.until({"a": "1"})
        server.pool = {"app": "v2"}
        await latest.until({"b": "2"})
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_pod_that_one_list_lacks_stays_and_one_that_three_lack_goes() -> None:
    async with ApiServer(ROLE) as server, following(server, SELECTED) as latest:
        await server.put("a", "1", **LABELS)
        await latest.until({"a": "1"})
        server.empty_lists = watched.LISTS - 1
        for _ in range(watched.LISTS):
            await listed_again(server)
            assert latest.ready == {"a": "1"}
        await server.put("b", "2", **LABELS)
        await latest.until({"a": "1", "b": "2"})
        server.empty_lists = watched.LISTS
        await listed_again(server)
        await latest.until({})


async def test_pods_that_are_not_ready_are_withheld_and_those_that_end_or_lack_an_address_left_out() -> (
    None
):
    async with ApiServer(ROLE) as server, following(server, SELECTED) as latest:
        await server.put("a", "1", **LABELS)
        await server.put("b", "2", ready=False, **LABELS)
        await server.put("c", "3", ip="", **LABELS)
        await server.put("d", "4", ends=True, **LABELS)
        await until_withheld(latest, {"a": "", "b": watched.UNREADY})
        await server.put("b", "2", ip="10.0.0.2", **LABELS)
        await latest.until({"a": "1", "b": "2"})
        assert latest.pods["b"].spec.events == "tcp://10.0.0.2:5557"
        await server.put("a", "1", ends=True, **LABELS)
        await latest.until({"b": "2"})
        await server.put("b", "2", ready=False, **LABELS)
        await until_withheld(latest, {"b": watched.UNREADY})
        await server.put("b", "2", ready=False, phase="Failed", **LABELS)
        await until_withheld(latest, {})


async def test_each_target_port_of_a_pool_is_an_endpoint_of_each_pod() -> None:
    pods = replace(POOLED, watch_port=7500, ranks=2)
    async with ApiServer(ROLE) as server, following(server, pods) as latest:
        server.ports = [8000, 8001]
        await server.put("a", "1", app="vllm")
        await latest.until({"a": "1", "a:8001": "1"})
        specs = {name: one.spec for name, one in latest.pods.items()}
        assert not specs["a"].events
        assert {name: (one.address, one.watch, one.first_rank) for name, one in specs.items()} == {
            "a": ("10.0.0.1:8000", "10.0.0.1:7500", 0),
            "a:8001": ("10.0.0.1:8001", "10.0.0.1:7501", 2),
        }
        server.ports = [8080]
        await latest.until({"a": "1"})
        assert latest.pods["a"].spec.address == "10.0.0.1:8080"


async def test_a_port_that_a_pods_annotation_does_not_name_takes_no_requests() -> None:
    async with ApiServer(ROLE) as server, following(server, POOLED) as latest:
        server.ports = [8000, 8001]
        only = {"llm-d.ai/active-ports": "8001"}
        await server.put("a", "1", app="vllm", annotations=only)
        await until_withheld(latest, {"a": watched.INACTIVE.format(8000), "a:8001": ""})
        await server.put("a", "1", app="vllm")
        await until_withheld(latest, {"a": "", "a:8001": ""})


NEW, OLD = "llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports"


@pytest.mark.parametrize(
    ("annotations", "active"),
    [
        ({}, {1, 2}),
        ({NEW: "1,2"}, {1, 2}),
        ({NEW: " 2 , 3"}, {2}),
        ({NEW: "2x,-1,0,,nonsense"}, {2}),
        ({NEW: ""}, set()),
        ({OLD: "1"}, {1}),
        ({OLD: "1", NEW: "2"}, {2}),
    ],
)
def test_the_ports_that_an_annotation_names(annotations: Any, active: set[int]) -> None:
    assert active_ports(map(annotations.get, ACTIVE_PORTS), (1, 2)) == active


def test_a_pool_of_each_version_is_read() -> None:
    v1 = {"selector": {"matchLabels": {"b": "2", "a": "1"}}, "targetPorts": [{"number": 8000}]}
    assert read_pool(v1) == InferencePool("a=1,b=2", (8000,))
    assert read_pool({"selector": {"a": "1"}, "targetPortNumber": 9}) == InferencePool("a=1", (9,))
    assert read_pool({"selector": {"a": "1"}}) == InferencePool("a=1", ())
    with pytest.raises(ValueError, match="every pod"):
        read_pool({"selector": {"matchLabels": {}}})


async def test_the_next_connection_is_made_with_the_new_authority_and_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kubernetes, "RETRY_SECONDS", 0.001)
    monkeypatch.setattr(api_access, "SERVICE_ACCOUNT", tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")

    @asynccontextmanager
    async def life(name: str, port: int = 0) -> AsyncIterator[ApiServer]:
        """Serve with a new authority and token, which the service account is given."""
        authority = Authority(tmp_path, name)
        (tmp_path / "token").write_text(f"token-{name}")
        (tmp_path / "ca.crt").write_bytes(authority.ca.read_bytes())
        shown = authority.certificate(f"{name}-api")
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(shown.cert, shown.key)
        async with ApiServer(token=f"token-{name}", tls=context, port=port) as server:
            await server.put("a", "1", **LABELS)
            yield server

    sets = KubernetesSource(SELECTED).sets()
    async with life("first") as server:
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
        assert list(await anext(sets)) == ["a"]
        assert server.asked_by == f"warmpath/{version()}"
    async with life("second", server.port) as server:
        await server.put("b", "2", **LABELS)
        while list(await anext(sets)) != ["a", "b"]:
            pass
        await sets.aclose()  # type: ignore[attr-defined]
    assert "token-" not in caplog.text
