"""The bytes of a real API server (1.37), read as pods: pages, a watch of 75 s, and errors."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from warmpath.router.config.schema import PodSetSpec
from warmpath.router.pods import watched
from warmpath.router.pods.inference_pool import InferencePool, read_pool
from warmpath.router.pods.refusal import said
from warmpath.router.pods.watched import ToldError, WatchedPods

RECORDING = Path(__file__).parents[2] / "recorded" / "api-server-1.37.jsonl.gz"
UNREADY = watched.UNREADY


@pytest.fixture(scope="module")
def exchanges() -> dict[str, Any]:
    """Return the recorded exchanges by title."""
    with gzip.open(RECORDING, "rt") as lines:
        return {one["title"]: one for one in map(json.loads, lines)}


def body(exchanges: dict[str, Any], title: str) -> bytes:
    return json.dumps(exchanges[title]["body"]).encode()


def lines(exchanges: dict[str, Any], begin: str) -> Iterator[bytes]:
    [exchange] = [one for title, one in exchanges.items() if title.startswith(begin)]
    for _, event in exchange["lines"]:
        yield json.dumps(event).encode() + b"\n"


def listed(exchanges: dict[str, Any]) -> WatchedPods:
    pods = WatchedPods(PodSetSpec(name="k", model="m", namespace="recorded", selector="app=vllm"))
    assert pods.needs_list
    token = pods.read_page(body(exchanges, "list, first page"), is_first=True)
    assert token
    assert not pods.read_page(body(exchanges, "list, second page"), is_first=False)
    pods.end_list()
    return pods


def seen(pods: WatchedPods) -> dict[str, tuple[str, str]]:
    return {
        name: (one.spec.address.partition(":")[0], one.withheld)
        for name, one in pods.found().items()
    }


def test_the_pages_of_a_list_are_the_same_pods_as_the_whole_list(exchanges: dict[str, Any]) -> None:
    paged = listed(exchanges)
    assert seen(paged) == {f"vllm-{n}": (f"127.77.0.{n + 1}", "") for n in range(3)}
    assert (paged.version, paged.needs_list) == ("4387", False)
    whole = WatchedPods(PodSetSpec(name="k", model="m", namespace="recorded", selector="app=vllm"))
    assert not whole.read_page(body(exchanges, "list"), is_first=True)
    whole.end_list()
    assert whole.found() == paged.found()


def test_a_list_that_says_the_same_again_leaves_every_pod_the_same_object(
    exchanges: dict[str, Any],
) -> None:
    pods = listed(exchanges)
    before = pods.found()
    assert not pods.read_page(body(exchanges, "list"), is_first=True)
    pods.end_list()
    assert before
    assert all(one is before[name] for name, one in pods.found().items())


def test_a_recorded_watch_is_followed_event_by_event(exchanges: dict[str, Any]) -> None:
    pods = listed(exchanges)
    before, changes = seen(pods), []
    for line in lines(exchanges, "watch with bookmarks"):
        is_change = pods.read_event(line)
        now = seen(pods)
        changes.append(
            {name: now.get(name) for name in {*before, *now} if now.get(name) != before.get(name)}
        )
        if changes[-1]:
            assert is_change
        before = now
    assert changes == [
        {}, {},
        {"vllm-3": ("127.7.0.141", "")},
        {"vllm-3": ("127.77.0.4", "")},
        {"vllm-0": ("127.77.0.1", UNREADY)},
        {"vllm-0": ("127.77.0.1", "")},
        {"vllm-1": None},
        {"vllm-1": ("127.77.0.2", "")},
        {}, {},
        {"vllm-2": None},
        {}, {}, {}, {},
        {"vllm-2": ("127.7.0.142", "")},
        {"vllm-2": ("127.77.0.9", "")},
        {}, {}, {},
    ]  # fmt: skip
    assert pods.found()["vllm-2"].identity.startswith("52a156ba")
    assert pods.version == "4564", "the last bookmark's"
    assert not pods.needs_list


def test_an_annotation_that_is_not_read_is_no_change(exchanges: dict[str, Any]) -> None:
    pods = listed(exchanges)
    events = list(lines(exchanges, "watch with bookmarks"))
    told = [pods.read_event(line) for line in events]
    annotated = next(n for n, line in enumerate(events) if b'"note"' in line)
    assert told[annotated - 1 : annotated + 1] == [True, False]
    assert told[-3:] == [False] * 3, "bookmarks"


def test_a_version_that_is_too_old_needs_a_list_and_one_that_is_too_new_does_not(
    exchanges: dict[str, Any],
) -> None:
    pods = listed(exchanges)
    late = exchanges[next(title for title in exchanges if "has not reached" in title)]["body"]
    with pytest.raises(ToldError, match="Too large resource version") as error:
        pods.read_event(json.dumps(late).encode())
    assert error.value.status.code == 504
    assert not pods.needs_list
    [old] = lines(exchanges, "watch from a version that is too old")
    with pytest.raises(ToldError, match="too old resource version"):
        pods.read_event(old)
    assert pods.needs_list


def test_a_list_that_has_begun_anew_forgets_its_first_pages(exchanges: dict[str, Any]) -> None:
    pods = listed(exchanges)
    pods.read_page(body(exchanges, "list, first page"), is_first=True)
    pods.read_page(b'{"metadata":{"resourceVersion":"9"},"items":null}', is_first=True)
    for _ in range(watched.LISTS):
        assert not pods.is_empty
        pods.end_list()
    assert pods.is_empty


def test_errors_and_pools_of_a_real_server_are_read(exchanges: dict[str, Any]) -> None:
    refused = said(body(exchanges, "list by an account without rights"))
    assert (refused.code, refused.reason) == (403, "Forbidden")
    assert "cannot list resource" in refused.message
    assert said(body(exchanges, "a resource that the server does not know")).code == 0
    spec = exchanges["an InferencePool"]["body"]["spec"]
    assert read_pool(spec) == InferencePool("app=vllm", (8000,))
