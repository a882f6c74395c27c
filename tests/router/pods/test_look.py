"""Asking all sources of pods once."""

import threading
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from warmpath.router.config.schema import Config, ModelSpec, PodSetSpec, PodSpec
from warmpath.router.pods.discover import SourceError, SourceState
from warmpath.router.pods.look import Looked, look, sources
from warmpath.router.pods.names import FoundPod
from warmpath.router.pods.polled import DnsSource


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
    specs = tuple(PodSpec(one, "m", "h:1") for one in ("x", "y"))
    assert look(asked, 60.0) == [
        Looked("a", ["x", "y"], "", specs=specs),
        Looked("b", [], "no such name"),
    ]
    assert look([], 60.0) == []


def test_a_name_server_that_never_answers_holds_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: never.wait())
    try:
        found = look([DnsSource(PodSetSpec(name="s", model="m", dns="x")), Source("a", "x")], 0.01)
    finally:
        never.set()
    assert found[0].problem == "no answer within 0.01 s"
    assert found[1].pods == ["x"]


def test_a_file_of_pods_has_its_mistakes_named(tmp_path: Path) -> None:
    (tmp_path / "pods.toml").write_text('[[pods]]\nid = "a"\nmodel = "x"\naddress = "h"\n')
    config = Config([ModelSpec("m")], pods_file="pods.toml")
    [found] = look(sources(config, tmp_path), 60.0)
    assert len(found.mistakes) == 2
    assert found.mistakes[0].startswith(f"{tmp_path}/pods.toml:3: pods[0].model: ")
    [found] = look(sources(config, tmp_path / "elsewhere"), 60.0)
    assert found.problem.endswith("there is no such file or folder")
    assert not found.mistakes
