"""Sources of pods that cannot be asked: /readyz, findings, the log and the live page's data say the same."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.router.running_router import running_router
from tests.servers.api_server import NAMESPACE, ApiServer
from warmpath.router.pods import api_access, kubernetes
from warmpath.router.pods.api_client import Access, ApiClient
from warmpath.router.pods.discover import STAY, SourceState, Trouble, unasked
from warmpath.router.pods.look import DnsSource, FileSource

ROLE: list[dict[str, Any]] = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}
]
TABLES = f"""
[[models]]
name = "m"
[[models]]
name = "n"
[[pod-sets]]
name = "api"
model = "m"
namespace = "{NAMESPACE}"
selector = "app=vllm"
[[pod-sets]]
name = "name"
model = "n"
dns = "engines.invalid"
"""


def test_a_trouble_keeps_its_beginning_and_is_logged_when_it_changes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    now = 10.0
    state = SourceState("pods-file x", "m", lambda: now)
    assert "pods-file x: it has not answered yet" in unasked([state])
    state.answered()
    assert unasked([state]) == ""
    now = 20.0
    state.failed("no such file", STAY, "write it")
    now = 30.0
    state.failed("no such file", STAY, "write it")
    state.failed("line 2 is wrong", STAY, "correct it")
    assert state.trouble == Trouble(20.0, "line 2 is wrong", STAY, "correct it")
    state.answered()
    state.answered()
    assert state.trouble is None
    assert caplog.messages == [
        "pods-file x: no such file; the pods stay as they were",
        "pods-file x: line 2 is wrong; the pods stay as they were",
        "pods-file x: it answers again",
    ]


@pytest.fixture
async def cluster(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ApiServer]:
    """Serve an API whose Role allows nothing; the router connects to it by itself."""
    async with ApiServer([]) as server:

        async def connect() -> ApiClient:
            return ApiClient(Access(server.address))

        monkeypatch.setattr(api_access, "connect", connect)
        monkeypatch.setattr(kubernetes, "RETRY_SECONDS", 0.01)
        monkeypatch.setattr(DnsSource, "pause", 0.01)
        yield server


async def until(look: Callable[[], Awaitable[Any]], wanted: Callable[[Any], bool]) -> Any:
    async with asyncio.timeout(120):
        while not wanted(seen := await look()):
            await asyncio.sleep(0.01)
    return seen


async def test_a_source_that_cannot_be_asked_is_named_wherever_one_looks(
    cluster: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: dict[str, list[str]] = {}

    async def getaddrinfo(name: str) -> list[str]:
        if name not in names:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return names[name]

    monkeypatch.setitem(DnsSource.__init__.__kwdefaults__, "ask", getaddrinfo)
    monkeypatch.setattr(FileSource, "pause", 0.01)
    file = tmp_path / "pods.toml"
    async with (
        running_router(tmp_path, TABLES, top='pods-file = "pods.toml"') as (router, _),
        aiohttp.ClientSession(f"http://{router.http_address}") as session,
    ):

        async def findings(model: str = "") -> dict[str, list[str]]:
            async with session.post("/api/v1/Diagnose", json={"model": model}) as answer:
                by_kind: dict[str, list[str]] = {}
                for one in (await answer.json()).get("findings", ()):
                    by_kind.setdefault(one["kind"], []).append(one["text"])
                return by_kind

        async def reasons() -> dict[str, str]:
            async with session.get("/readyz") as answer:
                conditions = (await answer.json())["conditions"]
            return {name: one["reason"] for name, one in conditions.items()}

        found = await until(findings, lambda seen: "not answered" not in str(seen))
        right, name, missing = found["source"]
        assert right.startswith("pod-sets api (kubernetes ns/app=vllm) cannot be asked for ")
        assert "list pods in namespace ns: 403 Forbidden: " in right
        assert "Do this: add the verb 'list' for 'pods' to the Role of" in right
        assert name.startswith("pod-sets name (dns engines.invalid) cannot be asked for ")
        assert "Do this: compare `dns` with the headless Service's name" in name
        assert missing.startswith(f"pods-file {file} cannot be asked for ")
        assert ": there is no such file or folder; the pods stay as they were. Do this: " in missing
        assert found["pods"] == ["the router knows no pod"]
        [unready] = found["readiness"]
        why = await reasons()
        assert unready.endswith(f"pods: {why['pods']}")
        for source in ("pod-sets api", "pod-sets name", f"pods-file {file}"):
            assert source in why["pods"]
            assert source in why["coverage"]
        assert len((await findings("n"))["source"]) == 2, "those of n, and the file"

        async with session.get("/metrics") as answer:
            assert f'warmpath_pod_source_up{{source="pods-file {file}"}} 0.0' in await answer.text()

        cluster.rules = ROLE
        names["engines.invalid"] = []
        file.write_text("[[pods]]\n")
        found = await until(
            findings, lambda seen: len(seen.get("source", ())) == 1 and "pods[0]" in str(seen)
        )
        assert f"{file}:1: pods[0]: has no 'id' (and 2 more); the pods stay" in found["source"][0]
        assert "Do this: correct the file" in found["source"][0]
        file.write_text("")
        found = await until(findings, lambda seen: "source" not in seen)
        why = await reasons()
        assert why["pods"] == "no pod is known"
        async with session.get("/metrics") as answer:
            assert f'warmpath_pod_source_up{{source="pods-file {file}"}} 1.0' in await answer.text()
        assert why["coverage"] == "the view of 0 of 0 well pods with events is exact"
