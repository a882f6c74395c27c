"""Troubles of an API server that pass or stay: its start, its restart, a pool or a namespace that is away."""

import logging
from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from tests.router.pods.test_kubernetes_watch import LABELS, POOLED, ROLE, SELECTED, following
from tests.servers.api_server import NAMESPACE, ApiServer
from tests.waiting import until
from warmpath.router.pods import kubernetes
from warmpath.router.pods.api_client import Access, ApiClient
from warmpath.router.pods.discover import SourceError
from warmpath.router.pods.kubernetes import KubernetesSource

MISSPELT = "0 pods; look whether the namespace is spelt right"


async def test_a_refusal_that_passes_is_no_trouble(caplog: pytest.LogCaptureFixture) -> None:
    async with ApiServer(ROLE) as server, following(server, SELECTED, grace=1e9) as latest:
        await server.put("a", "1", **LABELS)
        await latest.until({"a": "1"})
        await until(lambda: server.watches)
        server.unready = 5
        await server.finish_watches_unheard()
        await until(lambda: not server.unready)
        await server.put("b", "2", **LABELS)
        await latest.until({"a": "1", "b": "2"})
        assert latest.state.trouble is None
    assert not caplog.records


async def test_a_refusal_that_stays_is_a_trouble_once_the_grace_is_over() -> None:
    now = 0.0
    async with (
        ApiServer(ROLE) as server,
        following(server, SELECTED, grace=10.0, clock=lambda: now) as latest,
    ):
        await server.put("a", "1", **LABELS)
        await latest.until({"a": "1"})
        await until(lambda: server.watches)
        server.unready = 1 << 30
        await server.finish_watches_unheard()
        await until(lambda: server.unready < (1 << 30) - 5)
        assert latest.state.trouble is None
        now = 10.0
        await until(lambda: latest.state.trouble is not None)
        assert latest.state.trouble is not None
        assert "its Role lacks the verb" in latest.state.trouble.problem
        assert list(latest.pods) == ["a"]


async def test_a_server_whose_copy_is_behind_is_asked_again_without_a_list(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with ApiServer(ROLE) as server, following(server, SELECTED, grace=1e9) as latest:
        await server.put("a", "1", **LABELS)
        await latest.until({"a": "1"})
        await until(lambda: server.watches)
        lists = server.lists
        server.late = 3
        await server.finish_watches()
        await until(lambda: not server.late)
        await server.put("b", "2", **LABELS)
        await latest.until({"a": "1", "b": "2"})
        assert server.lists == lists
        assert latest.state.trouble is None
    assert not caplog.records


async def test_a_restart_is_followed_and_blames_no_role(caplog: pytest.LogCaptureFixture) -> None:
    async with ApiServer(ROLE) as server:
        port = server.port
        async with following(server, SELECTED, grace=1e9) as latest:
            await server.put("a", "1", **LABELS)
            await latest.until({"a": "1"})
            await server.__aexit__()
            await until(lambda: "nothing listens there" in caplog.text)
            async with ApiServer(ROLE, port=port) as restarted:
                restarted.unready, restarted.late = 3, 2
                await restarted.put("b", "2", **LABELS)
                await latest.until({"b": "2"})
                await until(lambda: latest.state.trouble is None)
    assert "Role" not in caplog.text


async def test_a_list_whose_version_is_forgotten_between_pages_begins_anew_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with ApiServer(ROLE) as server:
        for name in "abcde":
            await server.put(name, name, **LABELS)
        server.forgets = kubernetes.FRESH_LISTS - 1
        async with following(server, SELECTED) as latest:
            await latest.until({name: name for name in "abcde"})
            assert server.lists == kubernetes.FRESH_LISTS
    assert not caplog.records


async def test_a_token_of_no_page_is_refused() -> None:
    async with ApiServer(ROLE) as server:
        api = ApiClient(Access(server.address))
        with pytest.raises(SourceError, match="400 Bad Request: invalid continue token"):
            await api.page(NAMESPACE, "app=vllm", 2, "xyz")
        await api.close()


async def test_while_a_pool_is_away_new_pods_of_its_labels_are_found() -> None:
    async with ApiServer() as server, following(server, POOLED) as latest:
        await server.put("a", "1", app="vllm")
        await latest.until({"a": "1"})
        server.has_pool = False
        await until(lambda: latest.state.trouble is not None)
        await server.put("b", "2", app="vllm")
        await latest.until({"a": "1", "b": "2"})
        await server.delete("1")
        await latest.until({"b": "2"})
        trouble = latest.state.trouble
        assert trouble is not None
        assert (trouble.problem, trouble.effect) == ("no InferencePool 'pool'", kubernetes.OLD_POOL)
        server.has_pool, server.pool = True, {"app": "v2"}
        await server.put("c", "3", app="v2")
        await latest.until({"c": "3"})
        assert latest.state.trouble is None


@pytest.fixture
async def looked() -> Callable[..., Awaitable[list[str]]]:
    async def look(server: ApiServer, namespace: str) -> list[str]:
        api = ApiClient(Access(server.address))
        source = KubernetesSource(replace(SELECTED, namespace=namespace), api=api)
        try:
            return list(await source.look())
        finally:
            await api.close()

    return look


async def test_a_namespace_that_is_not_there_is_a_trouble_until_it_is(
    looked: Callable[..., Awaitable[list[str]]],
) -> None:
    other = replace(SELECTED, namespace="other")
    async with ApiServer() as server, following(server, other) as latest:
        with pytest.raises(SourceError, match="no namespace 'other'"):
            await looked(server, "other")
        assert await looked(server, NAMESPACE) == []
        await until(lambda: latest.state.trouble and "no namespace" in latest.state.trouble.problem)
        lists = server.lists
        await until(lambda: server.lists > lists + 3)
        assert latest.state.trouble is not None


async def test_without_the_right_to_ask_for_the_namespace_a_set_without_pods_has_a_hint(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    other = replace(SELECTED, namespace="other")
    async with ApiServer(ROLE) as server, following(server, other) as latest:
        await until(lambda: server.watches)
        server.end_watches()
        await until(lambda: server.watches > 1)
        assert latest.sets
    assert caplog.text.count(MISSPELT) == 1
