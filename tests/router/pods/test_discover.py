"""Pods that come and go: what is followed then, under which ids, and which two are one engine.

One file: one reconciler does all three.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from warmpath.indexer.index.slot import RankName
from warmpath.router.config.read import ConfigError, parse_pods
from warmpath.router.config.schema import MOST_ID_CHARACTERS, ModelSpec, PodSetSpec, PodSpec
from warmpath.router.pods.discover import AT_ONCE, Reconciler
from warmpath.router.pods.look import DnsSource
from warmpath.router.pods.names import FoundPod, Names, Place
from warmpath.router.pods.table import Role, Status
from warmpath.router.pods.twins import twins


class Known:
    """A followed pod."""

    def __init__(self, pod_id: str, follower: "Follower") -> None:
        self._id, self._follower = pod_id, follower

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "withheld":
            self._follower.calls.append(f"{self._id}: {value}")

    @property
    def serves(self) -> bool:
        return self._id not in self._follower.dead

    @property
    def is_heard(self) -> bool:
        return self._id not in self._follower.silent | self._follower.dead

    @property
    def status(self) -> Status:
        return Status(healthy=self.serves)


class Follower:
    """Follows what a reconciler hears of sources, and records its calls.

    `places` are the addresses of its pods; `silent` are pods whose events do not arrive, `dead` those whose
    probe fails, too.
    """

    def __init__(self, *expected: str) -> None:
        self.reconciler = Reconciler(self, expected)  # type: ignore[arg-type]
        self.places: dict[str, str] = {}
        self.calls: list[str] = []
        self.looked: list[str] = []
        self.silent: set[str] = set()
        self.dead: set[str] = set()
        self.names: dict[str, str] = {}

    async def hears(self, source: str, *sets: Mapping[str, FoundPod]) -> None:
        for found in sets:
            await self.reconciler.reconcile(source, found)

    def follow(self, spec: PodSpec, name: str) -> None:
        assert spec.id not in self.places
        self.places[spec.id] = spec.address
        self.names[spec.id] = name
        self.calls.append(f"+{spec.id}@{spec.address}")

    def pod(self, pod_id: str) -> Known:
        self.looked.append(pod_id)
        return Known(pod_id, self)

    def at(self, address: str) -> list[str]:
        return [pod_id for pod_id, place in self.places.items() if place == address]

    async def drop(self, pod_id: str) -> None:
        del self.places[pod_id]
        self.calls.append(f"-{pod_id}")


def found(pod_id: str, address: str = "h:1", identity: str = "") -> FoundPod:
    spec = PodSpec(id=pod_id, model="m", address=address, events="tcp://h:2")
    return FoundPod(spec, identity)


async def calls(*sets: Mapping[str, FoundPod]) -> list[str]:
    """Return what is done of the pods that a source finds, one set after the other."""
    follower = Follower()
    await follower.hears("s", *sets)
    return follower.calls


async def test_pods_are_followed_and_dropped_as_they_come_and_go() -> None:
    a, b, c = ({one: found(one)} for one in "abc")
    assert await calls(a | b, a | b, b | c) == ["+a@h:1", "+b@h:1", "-a", "+c@h:1"]


async def test_an_event_costs_the_pod_that_it_is_about_and_no_other() -> None:
    follower = Follower()
    fleet = {str(one): found(str(one), f"h:{one}") for one in range(100)}
    await follower.hears("s", fleet, fleet | {"7": replace(fleet["7"], withheld="not ready")})
    await follower.hears("s", fleet | {"8": found("8", "h:8", "other")})
    assert follower.looked == ["7", "7", "8"]
    assert follower.calls[100:] == ["7: not ready", "7: ", "-8", "+8@h:8"]


async def test_a_pod_that_a_source_describes_anew_in_the_same_words_stays() -> None:
    assert await calls({"a": found("a")}, {"a": found("a")}) == ["+a@h:1"]


async def test_other_work_goes_on_while_thousands_of_pods_are_found_at_once() -> None:
    follower = Follower()
    finding = asyncio.create_task(follower.hears("s", {one: found(one) for one in "abc"}))
    seen = []
    while not finding.done():
        await asyncio.sleep(0)
        seen.append(len(follower.places))
    assert {1, 2, 3} <= set(seen)


async def test_other_work_goes_on_while_thousands_of_pods_are_described_anew() -> None:
    follower = Follower()
    sets = [{str(one): found(str(one), f"h:{one}") for one in range(2 * AT_ONCE)} for _ in range(2)]
    await follower.hears("s", sets[0])
    finding = asyncio.create_task(follower.hears("s", sets[1]))
    seen = []
    while not finding.done():
        await asyncio.sleep(0)
        seen.append(len(follower.looked))
    assert any(0 < one < 2 * AT_ONCE for one in seen)


async def test_a_pod_of_another_identity_under_the_same_name_and_address_inherits_nothing() -> None:
    lives = [{"a": found("a", identity=f"uid-{life}")} for life in (1, 2)]
    assert await calls(*lives) == ["+a@h:1", "-a", "+a@h:1"]


async def test_a_pod_with_a_longer_id_than_may_be_is_ignored_and_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    follower = Follower()
    longest, longer = "a" * MOST_ID_CHARACTERS, "b" * (1 << 20)
    await follower.hears("s", {one: found(one) for one in (longest, longer)})
    assert follower.calls == [f"+{longest}@h:1"]
    assert (
        "s: a pod is ignored, whose id has 1048576 characters, more than 1024: bbb" in caplog.text
    )
    text = f'[[pods]]\nid = "{longer}"\nmodel = "m"\naddress = "h:1"'
    with pytest.raises(
        ConfigError, match=r"pods\[0\]\.id: has 1048576 characters, must have at most 1024"
    ):
        parse_pods(text.encode(), "p", [ModelSpec("m")])


async def test_one_source_does_not_touch_what_another_found(
    caplog: pytest.LogCaptureFixture,
) -> None:
    follower = Follower()
    await follower.hears("one", {"a": found("a")})
    await follower.hears("two", {"a": found("a", "h:9")}, {})
    assert follower.calls == ["+a@h:1"]
    assert "as one describes it" in caplog.text


async def test_a_pod_that_cannot_be_followed_costs_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Picky(Follower):
        def follow(self, spec: PodSpec, name: str) -> None:
            if spec.id == "a":
                raise ValueError("not this one")
            super().follow(spec, name)

    follower = Picky()
    await follower.hears("s", {"a": found("a"), "b": found("b")})
    assert follower.calls == ["+b@h:1"]
    assert "pod a of s cannot be followed" in caplog.text


SETS = st.dictionaries(st.sampled_from("abc"), st.sampled_from(["h:1", "h:2"]))


@given(st.lists(st.tuples(st.sampled_from(["one", "two", "three"]), SETS), max_size=12))
def test_whatever_sources_say_every_pod_is_followed_once_as_one_of_them_says(
    history: list[tuple[str, dict[str, str]]],
) -> None:
    async def run() -> None:
        follower = Follower()
        said: dict[str, dict[str, str]] = {}
        for source, pods in history:
            said[source] = pods
            await follower.hears(source, {one: found(one, pods[one]) for one in pods})
            assert follower.places.keys() == {one for each in said.values() for one in each}
            for pod_id, address in follower.places.items():
                assert address in {each.get(pod_id) for each in said.values()}

    asyncio.run(run())


async def test_a_pod_that_takes_no_requests_stays_followed_and_is_not_followed_for_that() -> None:
    ready, unready = {"a": found("a")}, {"a": replace(found("a"), withheld="not ready")}
    assert await calls(unready) == []
    said = unready, ready, unready, unready, ready
    assert await calls(*said) == ["+a@h:1", "a: not ready", "a: "]


async def test_a_pod_that_takes_no_requests_and_has_another_identity_is_forgotten() -> None:
    first, second = found("a", identity="1"), found("a", identity="2")
    assert await calls({"a": first}, {"a": replace(second, withheld="not ready")}) == [
        "+a@h:1",
        "-a",
    ]


async def test_a_pod_that_is_not_listed_any_more_is_forgotten_when_its_events_end() -> None:
    follower = Follower()
    other = {"b": found("b")}
    await follower.hears("s", {"a": found("a")} | other, {"a": unlisted("a")} | other)
    follower.silent.add("a")
    await follower.hears("s", *[{"a": unlisted("a")} | other] * 2)
    assert follower.calls == ["+a@h:1", "+b@h:1", "a: not listed", "-a"]
    await follower.hears("s", {"a": found("a")} | other)
    assert follower.calls[4:] == ["+a@h:1"]


def unlisted(pod_id: str, role: Role = "both") -> FoundPod:
    one = found(pod_id)
    spec = structs.replace(one.spec, role=role)
    return replace(one, spec=spec, withheld="not listed", is_unlisted=True)


@pytest.mark.parametrize("has_events", [False, True])
async def test_unlisted_pods_that_live_take_requests_while_no_listed_pod_is_well(
    has_events: bool,
) -> None:
    follower = Follower()
    if not has_events:
        follower.silent = {"a", "b"}
    lacking = {"a": unlisted("a"), "b": unlisted("b")}
    await follower.hears("s", {"a": found("a"), "b": found("b")})
    follower.calls.clear()
    follower.dead = {"c"}
    # The source finds nothing for as long as it likes, or names what does not answer.
    await follower.hears("s", lacking, {}, {}, {"c": found("c")}, {"c": found("c")})
    assert follower.calls == ["+c@h:1"]
    follower.dead.add("b")
    await follower.hears("s", {"c": found("c")})
    assert follower.calls == ["+c@h:1", "-b"], "it is dead"
    follower.dead = {"b"}
    await follower.hears("s", {"c": found("c")})
    assert follower.calls == ["+c@h:1", "-b", "-a"], "the one that the source names is well"


async def test_an_unlisted_pod_that_took_requests_waits_when_a_listed_one_is_well() -> None:
    follower = Follower()
    await follower.hears("s", {"a": found("a")}, {"a": unlisted("a")})
    for _ in range(2):
        await follower.hears("other", {"b": found("b")})
        await follower.hears("s", {"a": unlisted("a")})
    await follower.hears("s", {"a": found("a")})
    assert follower.calls == ["+a@h:1", "+b@h:1", "a: not listed", "a: "]


async def test_pods_of_another_role_do_not_take_the_place_of_unlisted_ones() -> None:
    both = unlisted("a", role="decode"), unlisted("b", role="prefill")
    listed = {one.spec.id: replace(one, withheld="", is_unlisted=False) for one in both}
    assert await calls(listed, listed | {"a": both[0]}) == ["+a@h:1", "+b@h:1"]


async def test_two_sets_of_one_name_in_dns_do_not_take_each_others_pods() -> None:
    async def ask(_: str) -> list[str]:
        return ["10.0.0.1"]

    follower = Follower()
    for name, port in (("s", 1), ("t", 2)):
        source = DnsSource(PodSetSpec(name=name, model="m", dns="x", port=port), ask=ask)
        sets = source.sets()
        await follower.hears(source.state.name, await anext(sets))
        await sets.aclose()  # type: ignore[attr-defined]
    assert follower.calls == ["+s-10.0.0.1@10.0.0.1:1", "+t-10.0.0.1@10.0.0.1:2"]


def pod(
    name: str, *, model: str = "m", address: str = "h:1", first: int = 0, ranks: int = 1
) -> PodSpec:
    return PodSpec(name, model, address, first_rank=first, ranks=ranks)


@pytest.mark.parametrize(
    ("one", "other", "are_twins"),
    [
        (pod("a"), pod("b"), True),
        (pod("a", ranks=2), pod("b", first=1), True),
        (pod("a"), pod("b", address="h:2"), False),
        (pod("a"), pod("b", model="n"), False),
        # An engine whose ranks publish on several machines is a pod for each of these.
        (pod("a", ranks=2), pod("b", first=2), False),
    ],
)
def test_pods_of_one_model_with_one_address_and_a_rank_in_common_are_twins(
    one: PodSpec, other: PodSpec, are_twins: bool
) -> None:
    pods = [("here", one), ("there", other)]
    assert list(twins(pods)) == ([(pods[1], pods[0])] if are_twins else [])


async def test_the_log_names_both_pods_and_their_sources_until_one_is_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    follower = Follower()
    both = {"b": FoundPod(pod("b")), "c": FoundPod(pod("c", address="h:2"))}
    await follower.hears("the configuration", {"a": FoundPod(pod("a"))})
    assert not caplog.messages
    for _ in range(2):
        await follower.hears("pods-file p", both)
        [told] = caplog.messages
        twin = "pod b of pods-file p: 'h:1' is also the address of pod 'a' of the configuration"
        assert told.startswith(twin)
    await follower.hears("pods-file p", {}, both)
    assert len(caplog.messages) == 2, "it is news again"


def endpoint(name: str, namespace: str, port: int = 8000) -> FoundPod:
    spec = PodSetSpec(name="s", model="m").pod(name, f"{name}.{namespace}", port=port)
    return FoundPod(spec, f"{namespace}/{name}", Place(namespace, port))


def pods(*endpoints: FoundPod) -> dict[str, FoundPod]:
    return {f"{one.spec.id}:{one.place}": one for one in endpoints}


def named(names: Names, source: str, *endpoints: FoundPod) -> set[str]:
    return {name for name, one in names.heard(source, pods(*endpoints))[source].items() if one}


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
    follower = Follower("a", "b")
    await follower.hears("b", pods(endpoint("x", "b")))
    await follower.hears("a", pods(endpoint("x", "a")))
    assert follower.calls == ["+x@x.b:8000", "-x", "+b/x@x.b:8000", "+x@x.a:8000"]
    assert follower.names == {"x": "", "b/x": "x"}


async def test_a_namespace_that_comes_later_disturbs_no_pod() -> None:
    follower = Follower("a", "b")
    await follower.hears("a", {})
    await follower.hears("b", pods(endpoint("x", "b")))
    await follower.hears("a", pods(endpoint("x", "a")))
    await follower.hears("a", {})
    assert follower.calls == ["+x@x.b:8000", "+a/x@x.a:8000", "-a/x"]


PLACES = st.sets(st.tuples(st.sampled_from("xy"), st.sampled_from([8000, 9])))


@given(st.lists(st.tuples(st.sampled_from("abc"), PLACES), max_size=12))
def test_whatever_sources_find_every_endpoint_is_followed_under_an_id_of_its_own(
    history: list[tuple[str, set[RankName]]],
) -> None:
    async def run() -> None:
        follower = Follower()
        there: dict[str, Mapping[str, FoundPod]] = {}
        for namespace, places in history:
            is_new = namespace not in there
            before = dict(follower.places)
            there[namespace] = pods(*(endpoint(name, namespace, port) for name, port in places))
            await follower.hears(namespace, there[namespace])
            at = follower.places
            addresses = sorted(one.spec.address for each in there.values() for one in each.values())
            assert sorted(at.values()) == addresses
            if not is_new:
                stayed = before.items() & at.items()
                assert {address for _, address in stayed} == {*before.values()} & {*at.values()}

    asyncio.run(run())
