"""Ids of pods of one name: each pod gets one, they differ, and they do not change while others come and go."""

import asyncio
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from tests.router.pods.test_discover import Follower
from warmpath.indexer.index.slot import RankName
from warmpath.router.config.schema import PodSetSpec
from warmpath.router.pods.discover import Reconciler
from warmpath.router.pods.names import FoundPod, Names, Place


def endpoint(name: str, namespace: str, port: int = 8000) -> FoundPod:
    spec = PodSetSpec(name="s", model="m").pod(name, f"{name}.{namespace}", port=port)
    return FoundPod(spec, f"{namespace}/{name}", Place(namespace, port))


def pods(*endpoints: FoundPod) -> dict[str, FoundPod]:
    return {f"{one.spec.id}:{one.place}": one for one in endpoints}


def named(names: Names, source: str, *endpoints: FoundPod) -> set[str]:
    return set(names.heard(source, pods(*endpoints))[source])


def test_a_pod_has_its_name_and_what_tells_it_from_the_first_of_that_name() -> None:
    names = Names()
    assert named(names, "a", endpoint("x", "a"), endpoint("x", "a", 9)) == {"x", "x:9"}
    assert named(names, "b", endpoint("x", "b"), endpoint("y", "b")) == {"b/x", "y"}
    assert named(names, "c", endpoint("x", "b", 9)) == {"b/x:9"}


def test_ids_stay_while_other_pods_of_the_name_go_and_come() -> None:
    names = Names()
    named(names, "a", endpoint("x", "a"))
    named(names, "b", endpoint("x", "b"))
    assert named(names, "a") == set()
    assert named(names, "b", endpoint("x", "b")) == {"b/x"}
    assert named(names, "a", endpoint("x", "a")) == {"x"}
    assert named(names, "b") == set()
    assert named(names, "b", endpoint("x", "b")) == {"b/x"}
    named(names, "a")
    named(names, "b")
    assert named(names, "b", endpoint("x", "b")) == {"x"}, "no pod had the name"


async def test_at_the_start_the_set_that_is_configured_first_has_the_names() -> None:
    follower = Follower()
    reconciler = Reconciler(follower)
    for source in ("a", "b"):
        reconciler.expect(source)
    await reconciler.reconcile("b", pods(endpoint("x", "b")))
    await reconciler.reconcile("a", pods(endpoint("x", "a")))
    assert follower.calls == ["+x@x.b:8000", "-x", "+b/x@x.b:8000", "+x@x.a:8000"]
    assert follower.names == {"x": "", "b/x": "x"}


async def test_a_namespace_that_comes_later_disturbs_no_pod() -> None:
    follower = Follower()
    reconciler = Reconciler(follower)
    for source in ("a", "b"):
        reconciler.expect(source)
    await reconciler.reconcile("a", {})
    await reconciler.reconcile("b", pods(endpoint("x", "b")))
    await reconciler.reconcile("a", pods(endpoint("x", "a")))
    await reconciler.reconcile("a", {})
    assert follower.calls == ["+x@x.b:8000", "+a/x@x.a:8000", "-a/x"]


PLACES = st.sets(st.tuples(st.sampled_from("xy"), st.sampled_from([8000, 9])))


@given(st.lists(st.tuples(st.sampled_from("abc"), PLACES), max_size=12))
def test_whatever_sources_find_every_endpoint_is_followed_under_an_id_of_its_own(
    history: list[tuple[str, set[RankName]]],
) -> None:
    async def run() -> None:
        follower = Follower()
        reconciler = Reconciler(follower)
        there: dict[str, Mapping[str, FoundPod]] = {}
        at: dict[str, str] = {}
        for namespace, places in history:
            is_new = namespace not in there
            before = dict(at)
            follower.calls.clear()
            there[namespace] = pods(*(endpoint(name, namespace, port) for name, port in places))
            await reconciler.reconcile(namespace, there[namespace])
            for call in follower.calls:
                if call.startswith("-"):
                    del at[call[1:]]
                else:
                    pod_id, _, address = call[1:].partition("@")
                    assert pod_id not in at
                    at[pod_id] = address
            addresses = sorted(one.spec.address for each in there.values() for one in each.values())
            assert sorted(at.values()) == addresses
            if not is_new:
                stayed = before.items() & at.items()
                assert {address for _, address in stayed} == {*before.values()} & {*at.values()}

    asyncio.run(run())
