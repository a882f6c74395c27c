"""Certificates and tokens are replaced under both clients, and no call fails for it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.router.access.guarded import Folder, channel_to, code_of, serving
from tests.warmpath.client.scripted_router import CLIENTS
from warmpath.client import credentials
from warmpath.client.async_client import AsyncClient
from warmpath.client.failure import CallError
from warmpath.process.tls import TlsPaths

LIST_PODS = "/warmpath.v1.Router/ListPods"
OPERATOR = "spiffe://example/operator"


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.fixture(autouse=True)
def _looks_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "LOOK_SECONDS", 0.0)


class Shown:
    """The files of a client, with copies of what it shows and trusts."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self.files = folder.old.certificate("op-1", OPERATOR).copy("shown")
        self.ca = folder.path / "trusted.pem"
        self.ca.write_bytes(folder.old.ca.read_bytes())

    @property
    def tls(self) -> TlsPaths:
        return TlsPaths(self.ca, self.files.cert, self.files.key)

    async def rotate(self, address: Any) -> None:
        """Replace the router's files, wait until it uses them, and replace the client's."""
        second = self._folder.new.certificate("op-2", OPERATOR)
        self._folder.rotate()
        while True:
            async with channel_to(address, self._folder.new, second) as channel:
                if await code_of(channel, LIST_PODS) is grpc.StatusCode.OK:
                    break
        self.files.replace(second)
        self.ca.write_bytes(self._folder.new.ca.read_bytes())


@pytest.mark.parametrize("kind", CLIENTS)
async def test_new_certificates_are_shown_on_a_new_channel(folder: Folder, kind: str) -> None:
    shown = Shown(folder)
    async with (
        serving(folder.config(tls=True, mutual=True)) as router,
        CLIENTS[kind](router.address, tls=shown.tls) as client,
    ):
        connection = getattr(client, "client", client)
        assert not (await client.pods()).pods
        first = connection._newest
        await shown.rotate(router)
        while connection._newest is first:
            await client.pods()
        await client.pods()


async def test_a_stream_goes_on_over_the_channel_that_it_began_on(folder: Folder) -> None:
    shown = Shown(folder)
    is_rotated = asyncio.Event()

    async def prompts() -> AsyncIterator[list[int]]:
        yield [1, 2]
        await is_rotated.wait()
        yield [1, 2, 3]

    async with (
        serving(folder.config(tls=True, mutual=True)) as router,
        AsyncClient(router.address, model="m", tls=shown.tls) as client,
    ):
        answers = client.score_stream(prompts())
        first = await anext(answers)
        await shown.rotate(router)
        await client.pods()
        assert client._newest is not None
        is_rotated.set()
        second = await anext(answers)
        assert [one.scores and one.scores.prompt_tokens for one in (first, second)] == [2, 3]
        with pytest.raises(StopAsyncIteration):
            await anext(answers)


@pytest.mark.parametrize("kind", CLIENTS)
async def test_a_client_that_lacks_tls_or_a_certificate_is_told_so(
    folder: Folder, kind: str
) -> None:
    authority = folder.old.ca
    async with serving(folder.config(tls=True, mutual=True)) as router:
        for tls, lacks in (
            (None, "TLS (tls=TlsPaths(…))"),
            (TlsPaths(authority), "a certificate (tls.cert, tls.key)"),
        ):
            async with CLIENTS[kind](router.address, tls=tls) as client:
                with pytest.raises(CallError, match="UNAVAILABLE: ") as raised:
                    await client.pods()
                assert f"it wants {lacks}" in raised.value.hint
                assert str(raised.value).endswith(f"({raised.value.hint})")
                assert raised.value.hint not in raised.value.message


async def first_refusal(client: Any) -> grpc.StatusCode:
    while True:
        try:
            await client.pods()
        except CallError as error:
            return error.code


@pytest.mark.parametrize("kind", CLIENTS)
async def test_a_new_token_is_sent_from_the_next_call_on(folder: Folder, kind: str) -> None:
    own = folder.path / "own-token"
    own.write_bytes((folder.path / "reader").read_bytes())
    async with (
        serving(folder.config(tls=True)) as router,
        CLIENTS[kind](router.address, tls=TlsPaths(folder.old.ca), token_file=own) as client,
    ):
        await client.pods()
        (folder.path / "reader").write_text("the-next-token-of-it")
        assert await first_refusal(client) is grpc.StatusCode.UNAUTHENTICATED
        own.write_text("the-next-token-of-it")
        await client.pods()
