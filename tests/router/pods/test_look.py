"""Sources of pods that are asked again and again, a DNS name and a file, and all sources asked once."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.waiting import until
from warmpath.router.config import read as read_config
from warmpath.router.config.read import MOST_BYTES, ConfigError, parse, parse_pods
from warmpath.router.config.schema import Config, ModelSpec, PodSetSpec, PodSpec
from warmpath.router.pods.discover import SourceError, SourceState
from warmpath.router.pods.look import UNLISTED, DnsSource, FileSource, Looked, look, sources
from warmpath.router.pods.names import FoundPod

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
    await until(lambda: "the pods stay as they were" in caplog.text)
    assert f"{path}:2: pods[0].id: " in caplog.text
    with path.open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    await until(lambda: "has more than 16777216 bytes; the pods stay as they were" in caplog.text)
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


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ('dns = "x"\nnamespace = "ns"', "give one of dns and namespace"),
        ("port = 1", "give one of dns and namespace"),
        ('namespace = "ns"', "give one of selector and inference-pool"),
        ('dns = "x"\nselector = "a=b"', "go with namespace"),
        ('namespace = "ns"\nselector = "app=vllm,"', "selector: has a requirement that is empty"),
        ('dns = "x"\nmode = "y"', "unknown key"),
        ('dns = "x"\nport = 70000', "port"),
        ('dns = "x"\n[[pod-sets]]\nname = "s"\nmodel = "m"\ndns = "y"', "names are unique"),
    ],
)
def test_a_pod_set_that_cannot_be_is_refused(lines: str, problem: str) -> None:
    text = f'[[models]]\nname = "m"\n[[pod-sets]]\nname = "s"\nmodel = "m"\n{lines}\n'
    with pytest.raises(ConfigError, match=problem):
        parse(text, "text")


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


class Source:
    """Finds pods, or raises an error."""

    def __init__(self, name: str, *pods: str, error: Exception | None = None) -> None:
        self.state = SourceState(name, "m", lambda: 0.0)
        self._pods = pods
        self._error = error

    async def look(self) -> Mapping[str, FoundPod]:
        if self._error is not None:
            raise self._error
        return {one: FoundPod(PodSpec(one, "m", "h:1")) for one in self._pods}

    async def sets(self) -> AsyncIterator[Mapping[str, FoundPod]]:
        yield await self.look()


def test_every_source_says_its_pods_or_why_it_cannot_be_asked() -> None:
    asked = [Source("a", "y", "x"), Source("b", error=SourceError("no such name", empty=True))]
    specs = [PodSpec(one, "m", "h:1") for one in ("x", "y")]
    assert look(asked, 60.0) == [Looked("a", specs), Looked("b", problem="no such name")]
    assert look([], 60.0) == []


def test_a_name_server_that_never_answers_holds_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: never.wait())
    try:
        found = look([DnsSource(PodSetSpec(name="s", model="m", dns="x")), Source("a", "x")], 0.01)
    finally:
        never.set()
    assert found[0].problem == "no answer within 0.01 s"
    assert [pod.id for pod in found[1].pods] == ["x"]


def test_a_file_of_pods_has_its_mistakes_named(tmp_path: Path) -> None:
    (tmp_path / "pods.toml").write_text('[[pods]]\nid = "a"\nmodel = "x"\naddress = "h"\n')
    config = Config([ModelSpec("m")], pods_file="pods.toml")
    [found] = look(sources(config, tmp_path), 60.0)
    assert len(found.mistakes) == 2
    assert found.mistakes[0].startswith(f"{tmp_path}/pods.toml:3: pods[0].model: ")
    [found] = look(sources(config, tmp_path / "elsewhere"), 60.0)
    assert found.problem.endswith("there is no such file or folder")
    assert not found.mistakes
