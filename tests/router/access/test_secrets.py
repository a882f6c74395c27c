"""What a router writes and prints of its protection: open listeners and bad files, and no secret."""

import asyncio
import contextlib
import logging
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.router.access.guarded import TOKENS, Folder, channel_to, code_of, serving
from warmpath.cli import check_config
from warmpath.lab.local.cluster import Process


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


async def test_no_secret_is_in_the_log_or_in_what_check_config_prints(
    folder: Folder, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    file = folder.config(tls=True)
    async with serving(file) as router, channel_to(router, folder.old) as channel:
        for name in ("", "scorer", "reader"):
            await code_of(channel, "/warmpath.v1.Router/ListPods", name)
        (folder.path / "scorer").write_text("sesame-too short")
        folder.files.key.write_text("-----BEGIN PRIVATE KEY-----\nc2VzYW1l\n")
        while caplog.text.count("stays in use") < 2:
            await asyncio.sleep(0.01)
    assert check_config.main([str(file)]) == 1
    printed = capsys.readouterr()
    for secret in (*TOKENS.values(), "sesame", "c2VzYW1l", "PRIVATE"):
        for text in (caplog.text, printed.out, printed.err):
            assert secret not in text


def test_check_config_names_files_that_cannot_be_used(
    folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    file = folder.config(tls=True, mutual=True)
    assert check_config.main([str(file)]) == 0
    folder.ca.write_text("no certificate")
    assert check_config.main([str(file)]) == 1
    assert "router.toml:8: server.tls.client-ca: " in capsys.readouterr().err
    folder.ca.write_bytes(folder.old.ca.read_bytes())
    (folder.path / "reader").write_text("short")
    assert check_config.main([str(file)]) == 1
    said = capsys.readouterr().err
    assert ": clients[2].token-file: " in said
    assert "has 5 bytes in its line; a token has 16 to 4096" in said


@pytest.mark.parametrize("protected", [False, True])
async def test_an_open_listener_is_named_in_the_log(
    folder: Folder, caplog: pytest.LogCaptureFixture, protected: bool
) -> None:
    file = folder.config(tls=protected)
    text = file.read_text().replace("[server]\n", "[server]\ninsecure = true\n")
    file.write_text(text.replace('listen = "127.0.0.1:0"\nm', 'listen = "0.0.0.0:0"\nm'))
    async with AsyncExitStack() as stack:
        router = await stack.enter_async_context(serving(file))
        assert router.address.startswith("0.0.0.0:")
    warned = (
        "server.listen: other machines reach 0.0.0.0:0, which lacks [server.tls] (server.insecure)"
    )
    assert (warned in caplog.text) is not protected
    assert "metrics-listen" not in caplog.text


@pytest.mark.deep
async def test_whoever_fails_to_shake_hands_gets_one_line_in_the_log_and_no_traceback(
    folder: Folder,
) -> None:
    router = Process("router", folder.path / "log")
    line = await router.start("warmpath.cli", "serve", "--config", str(folder.config(tls=True)))
    host, port = line.split(" on ")[1].split(",")[0].split(":")
    try:
        for _ in range(5):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.close()
    finally:
        await router.stop()
    lines = (folder.path / "log").read_text().splitlines()
    said = [line for line in lines if " INFO warmpath.process.listener: 127.0.0.1:" in line]
    assert all("the connection was not opened: " in line for line in said)
    assert len(said) == 5
    assert not [line for line in lines if "Traceback" in line or " ERROR " in line]
