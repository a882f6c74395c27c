"""Pods that come and go: what each source says, and what is followed then."""

import asyncio
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from warmpath.router.config import read as read_config
from warmpath.router.config.read import MOST_BYTES, ConfigError, parse, parse_pods
from warmpath.router.config.schema import MOST_ID_CHARACTERS, ModelSpec, PodSetSpec, PodSpec
from warmpath.router.pods.discover import Reconciler, SourceError
from warmpath.router.pods.names import FoundPod
from warmpath.router.pods.polled import UNLISTED, DnsSource, FileSource
from warmpath.router.pods.table import Role, Status


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
    """Records its calls. `silent` are pods whose events do not arrive, `dead` whose probe fails, too."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.silent: set[str] = set()
        self.dead: set[str] = set()
        self.names: dict[str, str] = {}

    def follow(self, spec: PodSpec, name: str) -> None:
        self.names[spec.id] = name
        self.calls.append(f"+{spec.id}@{spec.address}")

    def pod(self, pod_id: str) -> Known:
        return Known(pod_id, self)

    async def drop(self, pod_id: str) -> None:
        self.calls.append(f"-{pod_id}")


def found(pod_id: str, address: str = "h:1", identity: str = "") -> FoundPod:
    spec = PodSpec(id=pod_id, model="m", address=address, events="tcp://h:2")
    return FoundPod(spec, identity)


async def calls(*sets: Mapping[str, FoundPod]) -> list[str]:
    """Return what is done of the pods that a source finds, one set after the other."""
    follower = Follower()
    reconciler = Reconciler(follower)
    for said in sets:
        await reconciler.reconcile("s", said)
    return follower.calls


async def test_pods_are_followed_and_dropped_as_they_come_and_go() -> None:
    a, b, c = ({one: found(one)} for one in "abc")
    assert await calls(a | b, a | b, b | c) == ["+a@h:1", "+b@h:1", "-a", "+c@h:1"]


async def test_a_pod_of_another_identity_under_the_same_name_and_address_inherits_nothing() -> None:
    lives = [{"a": found("a", identity=f"uid-{life}")} for life in (1, 2)]
    assert await calls(*lives) == ["+a@h:1", "-a", "+a@h:1"]


async def test_a_pod_with_a_longer_id_than_may_be_is_ignored_and_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    follower = Follower()
    reconciler = Reconciler(follower)
    longest, longer = "a" * MOST_ID_CHARACTERS, "b" * (1 << 20)
    await reconciler.reconcile("s", {one: found(one) for one in (longest, longer)})
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
    reconciler = Reconciler(follower)
    await reconciler.reconcile("one", {"a": found("a")})
    await reconciler.reconcile("two", {"a": found("a", "h:9")})
    await reconciler.reconcile("two", {})
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
    await Reconciler(follower).reconcile("s", {"a": found("a"), "b": found("b")})
    assert follower.calls == ["+b@h:1"]
    assert "pod a of s cannot be followed" in caplog.text


SETS = st.dictionaries(st.sampled_from("abc"), st.sampled_from(["h:1", "h:2"]))


@given(st.lists(st.tuples(st.sampled_from(["one", "two", "three"]), SETS), max_size=12))
def test_whatever_sources_say_every_pod_is_followed_once_as_one_of_them_says(
    history: list[tuple[str, dict[str, str]]],
) -> None:
    async def run() -> None:
        follower = Follower()
        reconciler = Reconciler(follower)
        said: dict[str, dict[str, str]] = {}
        at: dict[str, str] = {}
        for source, pods in history:
            follower.calls.clear()
            said[source] = pods
            await reconciler.reconcile(source, {one: found(one, pods[one]) for one in pods})
            for call in follower.calls:
                pod_id, _, address = call[1:].partition("@")
                if call.startswith("+"):
                    assert pod_id not in at
                    at[pod_id] = address
                else:
                    del at[pod_id]
            assert at.keys() == {one for each in said.values() for one in each}
            for pod_id, address in at.items():
                assert address in {each.get(pod_id) for each in said.values()}

    asyncio.run(run())


PODS = '[[pods]]\nid = "{id}"\nmodel = "m"\naddress = "h:1"\nevents = "tcp://{host}:2"\n'


async def test_a_file_is_read_again_when_it_changes_and_a_bad_one_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FileSource, "pause", 0.005)
    path = tmp_path / "pods.toml"
    path.write_text(PODS.format(id="a", host="x"))
    sets = FileSource(path, [ModelSpec("m")]).sets()
    assert list(await anext(sets)) == ["a"]
    path.write_text('[[pods]]\nid = 5\nmodel = "m"\naddress = "h:1"\n')
    waiting = asyncio.ensure_future(anext(sets))
    while "the pods stay as they were" not in caplog.text:
        await asyncio.sleep(0.005)
    assert f"{path}:2: pods[0].id: " in caplog.text
    with path.open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    while "has more than 16777216 bytes; the pods stay as they were" not in caplog.text:
        await asyncio.sleep(0.005)
    path.unlink()
    path.write_text(PODS.format(id="a", host="x") + PODS.format(id="b", host="y"))
    assert list(await waiting) == ["a", "b"]
    await sets.aclose()  # type: ignore[attr-defined]


async def test_each_content_of_a_file_is_parsed_once_even_a_wrong_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[bytes] = []
    monkeypatch.setattr(
        read_config, "parse_pods", lambda raw, *of: parsed.append(raw) or parse_pods(raw, *of)
    )
    path = tmp_path / "pods.toml"
    source = FileSource(path, [ModelSpec("m")])
    path.write_text("nonsense")
    for _ in range(3):
        with pytest.raises(SourceError, match="a key/value pair"):
            await source.look()
    path.write_text(PODS.format(id="a", host="x"))
    for _ in range(3):
        assert list(await source.look()) == ["a"]
    assert len(parsed) == 2


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[server]\n", "unknown key"),
        (PODS.format(id="a", host="x").replace('"m"', '"other"'), "no model is named 'other'"),
        ("nonsense", "x"),
    ],
)
def test_a_pods_file_is_checked_like_the_configuration(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_pods(text.encode(), "x", [ModelSpec("m")])


class Resolver:
    """Gives one answer after the other, and lets `seconds` pass before each."""

    def __init__(self, *answers: list[str] | Exception, seconds: float) -> None:
        self._answers = list(answers)
        self._seconds = seconds
        self.now = 100.0

    async def __call__(self, _: str) -> list[str]:
        self.now += self._seconds
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def found(self) -> list[dict[str, str]]:
        """Return each set of pods that is yielded, with the reasons why they take no requests."""
        pods = PodSetSpec(name="w", model="m", dns="workers.svc")
        sets = DnsSource(pods, ask=self, clock=lambda: self.now).sets()
        found = []
        with suppress(IndexError), patch.object(DnsSource, "pause", 0.001):
            while True:
                said = await anext(sets)
                found.append({one: pod.withheld for one, pod in said.items()})
        return found


NO_NAME = socket.gaierror(socket.EAI_NONAME, "no such name")
AGAIN = socket.gaierror(socket.EAI_AGAIN, "try again")
ONE, TWO = {"w-10.0.0.1": ""}, {"w-10.0.0.1": "", "w-10.0.0.2": ""}


async def test_a_names_addresses_are_pods() -> None:
    async def ask(name: str) -> list[str]:
        assert name == "workers.svc"
        return ["10.0.0.2", "fd00::3"]

    sets = DnsSource(PodSetSpec(name="w", model="m", dns="workers.svc"), ask=ask).sets()
    found = await anext(sets)
    assert {one: pod.spec.address for one, pod in found.items()} == {
        "w-10.0.0.2": "10.0.0.2:8000",
        "w-fd00::3": "[fd00::3]:8000",
    }
    assert found["w-fd00::3"].spec.events == "tcp://[fd00::3]:5557"
    await sets.aclose()  # type: ignore[attr-defined]


@pytest.mark.parametrize("wrong", [NO_NAME, [], ["10.0.0.1"], AGAIN, UnicodeError("label")])
async def test_two_wrong_answers_about_addresses_change_nothing(
    wrong: list[str] | Exception,
) -> None:
    both = ["10.0.0.1", "10.0.0.2"]
    resolver = Resolver(both, wrong, wrong, both, wrong, both, seconds=60.0)
    for found in await resolver.found():
        assert found == TWO


async def test_answers_that_are_wrong_many_times_within_seconds_change_nothing() -> None:
    found = await Resolver(["10.0.0.1"], *[NO_NAME] * 9, ["10.0.0.1"], seconds=1.0).found()
    assert found == [ONE] * len(found)


async def test_an_address_that_several_answers_lack_is_withheld_and_goes_in_the_end() -> None:
    *there, withheld, gone = await Resolver(["10.0.0.1"], *[NO_NAME] * 4, seconds=100.0).found()
    assert there == [ONE] * 3
    assert withheld == {"w-10.0.0.1": UNLISTED}
    assert gone == {}


async def test_an_address_that_comes_back_takes_requests_again() -> None:
    found = await Resolver(["10.0.0.1"], *[NO_NAME] * 4, ["10.0.0.1"], seconds=50.0).found()
    assert found[-2:] == [{"w-10.0.0.1": UNLISTED}, ONE]


async def test_a_name_without_pods_has_none_at_once() -> None:
    assert await Resolver(NO_NAME, NO_NAME, seconds=1.0).found() == [{}, {}]


async def test_a_file_that_is_empty_for_a_moment_keeps_its_pods(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FileSource, "pause", 0.001)
    now = 0.0
    path = tmp_path / "pods.toml"
    path.write_text(PODS.format(id="a", host="x"))
    sets = FileSource(path, [ModelSpec("m")], clock=lambda: now).sets()
    assert list(await anext(sets)) == ["a"]
    path.write_text("")
    for _ in range(5):
        assert list(await anext(sets)) == ["a"]
    path.write_text(PODS.format(id="b", host="x"))
    while set(await anext(sets)) != {"a", "b"}:
        pass
    now = 60.0
    assert list(await anext(sets)) == ["b"]
    await sets.aclose()  # type: ignore[attr-defined]


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
    reconciler = Reconciler(follower)
    other = {"b": found("b")}
    await reconciler.reconcile("s", {"a": found("a")} | other)
    await reconciler.reconcile("s", {"a": unlisted("a")} | other)
    follower.silent.add("a")
    for _ in range(2):
        await reconciler.reconcile("s", {"a": unlisted("a")} | other)
    assert follower.calls == ["+a@h:1", "+b@h:1", "a: not listed", "-a"]
    await reconciler.reconcile("s", {"a": found("a")} | other)
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
    reconciler = Reconciler(follower)
    lacking = {"a": unlisted("a"), "b": unlisted("b")}
    await reconciler.reconcile("s", {"a": found("a"), "b": found("b")})
    follower.calls.clear()
    follower.dead = {"c"}
    # The source finds nothing for as long as it likes, or names what does not answer.
    for said in (lacking, {}, {}, {"c": found("c")}, {"c": found("c")}):
        await reconciler.reconcile("s", said)
    assert follower.calls == ["+c@h:1"]
    follower.dead.add("b")
    await reconciler.reconcile("s", {"c": found("c")})
    assert follower.calls == ["+c@h:1", "-b"], "it is dead"
    follower.dead = {"b"}
    await reconciler.reconcile("s", {"c": found("c")})
    assert follower.calls == ["+c@h:1", "-b", "-a"], "the one that the source names is well"


async def test_an_unlisted_pod_that_took_requests_waits_when_a_listed_one_is_well() -> None:
    follower = Follower()
    reconciler = Reconciler(follower)
    await reconciler.reconcile("s", {"a": found("a")})
    await reconciler.reconcile("s", {"a": unlisted("a")})
    for _ in range(2):
        await reconciler.reconcile("other", {"b": found("b")})
        await reconciler.reconcile("s", {"a": unlisted("a")})
    await reconciler.reconcile("s", {"a": found("a")})
    assert follower.calls == ["+a@h:1", "+b@h:1", "a: not listed", "a: "]


async def test_pods_of_another_role_do_not_take_the_place_of_unlisted_ones() -> None:
    both = unlisted("a", role="decode"), unlisted("b", role="prefill")
    listed = {one.spec.id: replace(one, withheld="", is_unlisted=False) for one in both}
    assert await calls(listed, listed | {"a": both[0]}) == ["+a@h:1", "+b@h:1"]


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ('dns = "x"\nnamespace = "ns"', "give one of dns and namespace"),
        ("port = 1", "give one of dns and namespace"),
        ('namespace = "ns"', "give one of selector and inference-pool"),
        ('dns = "x"\nselector = "a=b"', "go with namespace"),
        ('dns = "x"\nmode = "y"', "unknown key"),
        ('dns = "x"\nport = 70000', "port"),
        ('dns = "x"\n[[pod-sets]]\nname = "s"\nmodel = "m"\ndns = "y"', "names are unique"),
    ],
)
def test_a_pod_set_that_cannot_be_is_refused(lines: str, problem: str) -> None:
    text = f'[[models]]\nname = "m"\n[[pod-sets]]\nname = "s"\nmodel = "m"\n{lines}\n'
    with pytest.raises(ConfigError, match=problem):
        parse(text, "text")


async def test_two_sets_of_one_name_in_dns_do_not_take_each_others_pods() -> None:
    async def ask(_: str) -> list[str]:
        return ["10.0.0.1"]

    follower = Follower()
    reconciler = Reconciler(follower)
    for name, port in (("s", 1), ("t", 2)):
        source = DnsSource(PodSetSpec(name=name, model="m", dns="x", port=port), ask=ask)
        sets = source.sets()
        await reconciler.reconcile(source.state.name, await anext(sets))
        await sets.aclose()  # type: ignore[attr-defined]
    assert follower.calls == ["+s-10.0.0.1@10.0.0.1:1", "+t-10.0.0.1@10.0.0.1:2"]


async def test_a_name_that_no_resolver_takes_is_logged_once_and_asked_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DnsSource, "pause", 0.001)
    asked = 0

    async def ask(_: str) -> list[str]:
        nonlocal asked
        asked += 1
        if asked < 4:
            raise UnicodeError("label too long")
        return ["10.0.0.1"]

    sets = DnsSource(PodSetSpec(name="s", model="m", dns="x"), ask=ask).sets()
    assert list(await anext(sets)) == ["s-10.0.0.1"]
    assert caplog.text.count("label too long") == 1
    await sets.aclose()  # type: ignore[attr-defined]
