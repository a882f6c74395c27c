"""Engines that ask for an API key are asked with it, and one that refuses the router is named."""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from tests.servers.http import listening
from warmpath.router.diagnosis.attribution import Row
from warmpath.router.diagnosis.facts import PodFacts
from warmpath.router.diagnosis.findings import findings
from warmpath.router.pods.engine_key import EngineKey
from warmpath.router.pods.probe import LOOKS, Prober
from warmpath.router.pods.table import Pod


class Guarded:
    """An engine whose pages want a key, except those in `open_pages`."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.status = 401
        self.open_pages = {"/health", "/metrics"}
        self.pages = {
            "/v1/models": b'{"data":[{"id":"m"},{"id":"tuned","parent":"m"}]}',
            "/version": b'{"version":"0.32.0"}',
        }

    async def answer(self, request: web.Request) -> web.Response:
        is_open = request.path in self.open_pages
        if not is_open and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.Response(status=self.status)
        return web.Response(body=self.pages.get(request.path, b""))


@pytest.fixture
async def engine() -> AsyncIterator[tuple[Guarded, Pod]]:
    guarded = Guarded("first-key")
    async with listening(guarded.answer) as address:
        yield guarded, Pod("p", address, "m", (), has_events=False)


async def look(prober: Prober, times: int = 1) -> None:
    async with aiohttp.ClientSession() as session:
        for _ in range(times):
            await prober.look(session)


def prober(pod: Pod, key: EngineKey | None = None) -> Prober:
    return Prober(pod, interval=1, timeout=5, key=key or EngineKey())


@pytest.mark.parametrize("is_all_guarded", [False, True])
async def test_the_models_of_an_engine_that_wants_a_key_are_known_with_the_key_of_its_file(
    engine: tuple[Guarded, Pod], tmp_path: Path, *, is_all_guarded: bool
) -> None:
    guarded, pod = engine
    if is_all_guarded:
        guarded.open_pages.clear()
    file = tmp_path / "key"
    file.write_text("first-key\n")
    asking = prober(pod, EngineKey(file))
    await look(asking)
    assert pod.status.healthy
    assert pod.status.adapters == {"tuned"}
    assert pod.status.version == "0.32.0"
    assert not pod.status.refusal


async def test_a_key_that_is_replaced_is_used_as_soon_as_the_engine_refuses_the_old_one(
    engine: tuple[Guarded, Pod], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    guarded, pod = engine
    file = tmp_path / "key"
    file.write_text("first-key")
    asking = prober(pod, EngineKey(file))
    await look(asking)
    guarded.key = "second-key"
    guarded.pages["/v1/models"] = b'{"data":[{"id":"m"}]}'
    await look(asking, LOOKS)
    refused = (
        f"/v1/models answers 401 and /version answers 401: the engine refuses the key in {file}"
    )
    assert pod.status.refusal.startswith(refused)
    assert pod.status.adapters == {"tuned"}, "what it told before"
    file.write_text("second-key")
    await look(asking)
    assert not pod.status.refusal
    assert not pod.status.adapters
    assert "-key" not in caplog.text.replace("key-file", ""), "no key is logged"


@pytest.mark.parametrize("status", [401, 403])
async def test_an_engine_that_wants_a_key_and_gets_none_is_a_finding_and_one_line_of_the_log(
    engine: tuple[Guarded, Pod], caplog: pytest.LogCaptureFixture, status: int
) -> None:
    guarded, pod = engine
    guarded.status = status
    asking = prober(pod)
    await look(asking, LOOKS + 1)
    said = [one.message for one in caplog.records if "key-file" in one.message]
    assert len(said) == 1
    assert f"pod p: /v1/models answers {status}" in said[0]
    facts = PodFacts(False, True, (), Row("p", "m"), refusal=pod.status.refusal)
    [found] = [one for one in findings(facts) if one.kind == "key"]
    assert "key-file" in found.text
    guarded.open_pages.update(guarded.pages)
    await look(asking)
    assert not pod.status.refusal
    assert pod.status.adapters == {"tuned"}, "a page that was refused is asked for at each look"


async def test_a_key_file_that_cannot_be_read_is_named_and_read_when_it_is_there(
    engine: tuple[Guarded, Pod], tmp_path: Path
) -> None:
    _, pod = engine
    file = tmp_path / "key"
    asking = prober(pod, EngineKey(file))
    for content in (None, b"", b"two words", b"no\x00text", "schlüssel".encode()):
        if content is not None:
            file.write_bytes(content)
        await look(asking)
        assert f"there is no key in {file}" in pod.status.refusal
    file.write_bytes(b"first-key\r\n")
    await look(asking)
    assert not pod.status.refusal
