"""Pods of Kubernetes: whatever the API server does, the router has its pods in the end; a Role that is too small."""

import asyncio
import copy
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.servers.api_server import NAMESPACE, POOLS, ApiServer
from tests.waiting import until
from warmpath.router.config.schema import PodSetSpec
from warmpath.router.pods import api_access, kubernetes, watched
from warmpath.router.pods.api_client import Access, ApiClient
from warmpath.router.pods.discover import SourceError
from warmpath.router.pods.kubernetes import KubernetesSource
from warmpath.router.pods.names import FoundPod

LABELS = {"app": "vllm"}
SELECTED = PodSetSpec(name="k", model="m", namespace=NAMESPACE, selector="app=vllm")
POOLED = PodSetSpec(name="k", model="m", namespace=NAMESPACE, inference_pool="pool")
ROLE: list[dict[str, Any]] = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
    {"apiGroups": [POOLS], "resources": ["inferencepools"], "resourceNames": ["pool"], "verbs": ["get"]},
]  # fmt: skip
"""The rights of the chart's Role."""
PAUSE = 0.01
"""Seconds between two tries, where a router has 2."""


class Latest:
    """The pods that a source has found last."""

    def __init__(self, source: KubernetesSource) -> None:
        self.state = source.state
        self.pods: Mapping[str, FoundPod] = {}
        self.sets = 0

    async def follow(self, source: KubernetesSource) -> None:
        async for self.pods in source.sets():
            self.sets += 1

    async def until(self, wanted: Mapping[str, str]) -> None:
        await until(lambda: self.ready == wanted)

    @property
    def ready(self) -> dict[str, str]:
        """The uids of the pods that may take requests, by name."""
        return {name: one.identity for name, one in self.pods.items() if not one.withheld}


@asynccontextmanager
async def following(
    server: ApiServer,
    pods: PodSetSpec,
    *,
    grace: float = 0.0,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncIterator[Latest]:
    """Follow a set, with pages of two pods; `grace`: how long refusals that may pass are no trouble."""
    api = ApiClient(Access(server.address))
    source = KubernetesSource(pods, api=api, clock=clock)
    latest = Latest(source)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kubernetes, "RETRY_SECONDS", PAUSE)
        patch.setattr(kubernetes, "POOL_SECONDS", PAUSE)
        patch.setattr(kubernetes, "GRACE_SECONDS", grace)
        patch.setattr(kubernetes, "PAGE", 2)
        task = asyncio.ensure_future(latest.follow(source))
        try:
            yield latest
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await api.close()


async def listed_again(server: ApiServer, times: int = 1) -> None:
    """Cut watches off until as many more lists were answered."""
    wanted = server.lists + times
    async with asyncio.timeout(120):
        while server.lists < wanted:
            server.end_watches()
            await asyncio.sleep(0.001)


async def settled(server: ApiServer, latest: Latest) -> None:
    """Wait until the pods that are found are those of the server, which says no more that it has none."""
    if server.empty_lists:
        server.empty_lists = 0
        # A list that was wrong about pods that nobody knew yet is put right by the next list only.
        await listed_again(server)
    await latest.until(server.ready(LABELS))


NAMES = st.sampled_from("abc")
STEPS = st.one_of(
    st.tuples(st.just("put"), NAMES, st.booleans(), st.sampled_from(["vllm", "other"])),
    st.tuples(st.just("anew"), NAMES),
    st.tuples(st.just("delete"), NAMES),
    st.tuples(st.sampled_from(["compact", "cut", "fail", "empty", "look"])),
)


@settings(max_examples=examples(25))
@given(st.lists(STEPS, max_size=15))
def test_whatever_happens_to_the_watch_the_pods_are_those_of_the_server(
    steps: list[tuple[Any, ...]],
) -> None:
    async def run() -> None:
        async with ApiServer(ROLE) as server, following(server, SELECTED) as latest:
            lives = 0
            uids: dict[str, str] = {}
            for step in steps:
                match step:
                    case "put", name, ready, app:
                        await server.put(name, uids.setdefault(name, name), ready=ready, app=app)
                    case "anew", name:
                        lives += 1
                        await server.delete(uids.pop(name, ""))
                        uids[name] = f"{name}-{lives}"
                        await server.put(name, uids[name], **LABELS)
                    case "delete", name:
                        await server.delete(uids.pop(name, ""))
                    case ("compact",):
                        server.compact()
                    case ("cut",):
                        server.end_watches()
                    case ("fail",):
                        server.failures = 2
                    case ("empty",):
                        server.empty_lists = 2
                    case ("look",):
                        await settled(server, latest)
            await settled(server, latest)

    asyncio.run(run())


async def test_an_event_that_changes_nothing_that_is_read_finds_no_pods_anew() -> None:
    async with ApiServer(ROLE) as server, following(server, SELECTED) as latest:
        await server.put("a", "1", **LABELS)
        await latest.until({"a": "1"})
        sets = latest.sets
        for nth in range(20):
            await server.put("a", "1", annotations={"seen": str(nth)}, **LABELS)
        await server.put("b", "2", **LABELS)
        await latest.until({"a": "1", "b": "2"})
        assert latest.sets == sets + 1


@pytest.mark.parametrize("bookmarks", [True, False])
async def test_a_watch_goes_on_where_the_last_one_ended_without_a_list(bookmarks: bool) -> None:
    async with ApiServer(ROLE) as server, following(server, SELECTED) as latest:
        server.bookmarks = bookmarks
        await server.put("a", "1", **LABELS)
        await latest.until({"a": "1"})
        await until(lambda: server.watches)
        lists = server.lists
        for nth in range(1, watched.WATCHES):
            await server.put("b", "2", ready=bool(nth % 2), **LABELS)
            await server.finish_watches()
            await latest.until(server.ready(LABELS))
        assert server.lists == lists
        await server.put("c", "3", **LABELS)
        await server.finish_watches()
        await latest.until(server.ready(LABELS))
        # A list now and then puts right whatever the last one lacked.
        assert server.lists == lists + 1


async def test_who_asks_anew_gets_all_pods_though_a_watch_could_go_on() -> None:
    async with ApiServer(ROLE) as server:
        await server.put("a", "1", **LABELS)
        api = ApiClient(Access(server.address))
        source = KubernetesSource(SELECTED, api=api)
        for _ in range(2):
            sets = source.sets()
            async with asyncio.timeout(60):
                assert list(await anext(sets)) == ["a"]
            await sets.aclose()  # type: ignore[attr-defined]
        await api.close()


async def test_after_a_watch_whose_version_is_too_old_the_pods_are_listed() -> None:
    async with ApiServer(ROLE) as server, following(server, SELECTED) as latest:
        await server.put("a", "1", **LABELS)
        await latest.until({"a": "1"})
        await until(lambda: server.watches)
        lists = server.lists
        await server.put("b", "2", app="other")
        await server.delete("1")
        server.compact()
        await server.finish_watches()
        await latest.until({})
        assert server.lists > lists


async def test_a_cut_connection_is_told_in_words(caplog: pytest.LogCaptureFixture) -> None:
    async with ApiServer(ROLE) as server, following(server, SELECTED):
        await until(lambda: server.watches)
        server.end_watches()
        await until(lambda: caplog.records)
        assert f"{server.address}: {api_access.CUT}; " in caplog.records[0].getMessage()


async def test_what_was_known_stays_while_the_api_is_away() -> None:
    async with ApiServer(ROLE) as server, following(server, SELECTED) as latest:
        await server.put("a", "1", **LABELS)
        await latest.until({"a": "1"})
        server.failures = 1 << 30
        server.end_watches()
        await server.delete("1")
        await server.put("z", "7", **LABELS)
        while server.failures > (1 << 30) - 5:
            assert list(latest.pods) == ["a"]
            await asyncio.sleep(0.001)
        server.failures = 0
        await latest.until({"z": "7"})


@pytest.mark.parametrize(
    ("rule", "verb", "resource"),
    [(0, "list", "pods"), (0, "watch", "pods"), (1, "get", f"inferencepools.{POOLS}")],
)
async def test_each_verb_that_a_role_lacks_is_named(
    caplog: pytest.LogCaptureFixture, rule: int, verb: str, resource: str
) -> None:
    role = copy.deepcopy(ROLE)
    role[rule]["verbs"].remove(verb)
    async with ApiServer(role) as server, following(server, POOLED) as latest:
        await server.put("a", "1", app="vllm")
        await until(lambda: caplog.records)
        said = caplog.records[0].getMessage()
        assert said.startswith("pod-sets k (kubernetes ns/pool): ")
        assert f"{verb} {resource} in namespace ns: 403 Forbidden: " in said
        assert f'cannot {verb} resource "{resource.partition(".")[0]}"' in said
        assert f"its Role lacks the verb '{verb}' for '{resource}'" in said
        # The right is given, and the router goes on by itself.
        server.rules = ROLE
        await latest.until({"a": "1"})


async def test_a_pool_that_is_not_there_is_named() -> None:
    pods = PodSetSpec(name="k", model="m", namespace=NAMESPACE, inference_pool="nowhere")
    async with ApiServer() as server:
        api = ApiClient(Access(server.address))
        with pytest.raises(SourceError, match="no InferencePool 'nowhere'"):
            await KubernetesSource(pods, api=api).look()
        await api.close()


async def test_without_a_cluster_the_api_is_tried_again_and_the_reason_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    tries = 0

    def no_cluster() -> None:
        nonlocal tries
        tries += 1

    monkeypatch.setattr(kubernetes, "RETRY_SECONDS", PAUSE)
    monkeypatch.setattr(api_access, "_service_account", no_cluster)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    pods = PodSetSpec(name="k", model="m", namespace="ns", selector="a=b")
    waiting = asyncio.ensure_future(anext(KubernetesSource(pods).sets()))
    await until(lambda: tries >= 5)
    assert not waiting.done()
    [record] = caplog.records
    assert "no service account of a cluster and no kubeconfig" in record.getMessage()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"<html>a proxy</html>", "the answer is no event of pods"),
        (b"\xff\xfe", "the answer is no event of pods"),
        (b"[]", "the answer is no event of pods"),
        (b'{"type": "ADDED"}', "the answer is no event of pods"),
        (b'{"type": "ADDED", "object": null}', "the answer is no event of pods"),
        (b'{"type": "ADDED", "object": {"metadata": {"uid": "9"}}}', "the answer is no event of pods"),
        (b'{"type": "ADDED", "object": {"metadata": {"name": "x", "uid": "9"}, "status": 5}}', "the answer is no event of pods"),
        (b'{"type": "BOOKMARK", "object": {}}', "the answer is no event of pods"),
        (b'{"type": "BOOKMARK", "object": {"metadata": null}}', "the answer is no event of pods"),
        (b'{"type": "ERROR", "object": {"kind": "Status"}}', "watch pods in namespace ns: 0"),
        (
            b'{"type": "ERROR", "object": {"code": 504, "reason": "Timeout", "message": "too large"}}',
            "watch pods in namespace ns: 504 Timeout: too large",
        ),
        (b"x" * (5 << 20), "an event is too long"),
    ],
)  # fmt: skip
async def test_a_watch_that_says_what_no_api_server_says_is_begun_again(
    caplog: pytest.LogCaptureFixture, line: bytes, problem: str
) -> None:
    async with ApiServer(ROLE) as server, following(server, SELECTED) as latest:
        await server.put("a", "1", **LABELS)
        await latest.until({"a": "1"})
        server.next_line = line + b"\n"
        server.end_watches()
        await until(lambda: any(problem in message for message in caplog.messages[-1:]))
        await server.put("b", "2", **LABELS)
        await latest.until({"a": "1", "b": "2"})


async def test_a_bookmark_is_no_pod() -> None:
    async with ApiServer(ROLE) as server, following(server, SELECTED) as latest:
        server.next_line = b'{"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": {"resourceVersion": "9"}}}\n'
        await until(lambda: not server.next_line)
        await server.put("b", "2", **LABELS)
        await latest.until({"b": "2"})
        assert latest.state.trouble is None


async def test_a_watch_that_is_refused_is_a_problem_of_one_line_for_as_long_as_it_lasts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    role = copy.deepcopy(ROLE)
    role[0]["verbs"].remove("watch")
    async with ApiServer(role) as server, following(server, SELECTED) as latest:
        await server.put("a", "1", **LABELS)
        await latest.until({"a": "1"})
        async with asyncio.timeout(120):
            await until(lambda: latest.state.trouble is not None)
            wanted = server.lists + 5
            while server.lists < wanted:
                assert latest.state.trouble is not None
                await asyncio.sleep(0)
        # The lists go on.
        await server.put("b", "2", **LABELS)
        await latest.until({"a": "1", "b": "2"})
        assert latest.state.trouble is not None
        assert latest.state.trouble.effect == kubernetes.LISTED
        assert len(caplog.records) == 1
        server.rules = ROLE
        await until(lambda: latest.state.trouble is None)
