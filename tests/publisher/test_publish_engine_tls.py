"""A publisher beside an engine that serves its events over HTTPS."""

import asyncio
from pathlib import Path

import pytest
from aiohttp import web

from tests.indexer.trtllm_answers import CREATED, answer
from tests.servers.certificates import Authority
from tests.servers.https import serving
from warmpath.publisher.assemble import publishing
from warmpath.publisher.main import main
from warmpath.publisher.settings import Settings


def settings(address: str, **tls: Path) -> Settings:
    return Settings(
        pod="p", model="m", engine="trtllm", events=f"https://{address}/kv_cache_events", replay="",
        topic="", ranks=1, first_rank=0, blocks=0, block_size=32, hash_seed="",
        listen="127.0.0.1:0", metrics_listen="", journal_bytes=1 << 20, max_watchers=4, **tls,
    )  # fmt: skip


async def test_it_follows_an_engine_over_tls_with_the_newest_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    events = [answer(CREATED)]

    async def engine(_: web.Request) -> web.Response:
        return web.Response(body=events.pop() if events else b"[]")

    ours, theirs = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    shown = ours.certificate("publisher")
    ca = tmp_path / "engine-ca.pem"
    ca.write_bytes(ours.ca.read_bytes())
    async with serving(theirs, engine, client_ca=str(ours.ca)) as address:
        files = {"engine_ca": ca, "engine_cert": shown.cert, "engine_key": shown.key}
        async with publishing(settings(address, **files)) as running, asyncio.timeout(60):
            (rank,) = running.cache.ranks
            while "its certificate is refused" not in caplog.text:
                await asyncio.sleep(0.01)
            ca.write_bytes(theirs.ca.read_bytes())
            while not rank.is_connected:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["--engine-cert=a.pem"], "--engine-cert and --engine-key: give both or none"),
        (["--engine-ca=a.pem"], "--engine-ca: needs --events https://"),
        (["--events=https://h:1/e", "--engine-ca=none.pem"], "--engine-ca: there is no file"),
    ],
)
def test_files_that_contradict_the_rest_are_refused(
    given: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["--pod=p", "--model=m", "--engine=trtllm", "--events=http://h:1/e", *given])
    assert problem in capsys.readouterr().err


def test_a_file_that_is_no_certificate_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.pem"
    text.write_text("no certificate")
    given = ["--pod=p", "--model=m", "--engine=trtllm", "--events=https://h:1/e"]
    assert main([*given, f"--engine-ca={text}", "--listen=127.0.0.1:0"]) == 1
    assert f"--engine-ca: {text} cannot be used" in capsys.readouterr().err
