"""The router's own lines: of its start, of refused calls, of processes that end. Those of the start go into the log if that is JSON."""

import argparse
import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.router.running_router import metrics_page, running_router
from warmpath.proto.pb.warmpath.v1 import router_pb2
from warmpath.proto.pb.warmpath.v1.router_pb2_grpc import RouterStub
from warmpath.router import serve
from warmpath.router.assemble import calls
from warmpath.router.assemble.calls import Refused
from warmpath.router.calls import server
from warmpath.router.config.read import parse
from warmpath.router.processes import Processes

MODEL = '[[models]]\nname = "m"\n'
PLAIN = parse(MODEL, "test")
TLS = '[server.tls]\ncert = "c"\nkey = "k"\n'
CLIENT = '[[clients]]\nname = "n"\ntoken-file = "t"\nroles = ["score"]\n'


def options(form: str, process: int | None = None) -> argparse.Namespace:
    return argparse.Namespace(log_format=form, process=process, shadow=False, shadow_log=None)


def test_the_start_is_a_line_of_the_log_if_that_is_json(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO)
    serve._say_ready(options("json"), PLAIN, "127.0.0.1:7400, HTTP on 127.0.0.1:7401")
    assert "serves gRPC on 127.0.0.1:7400, HTTP on 127.0.0.1:7401" in caplog.text
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("form", "process"), [("text", None), ("text", 0), ("json", 0)])
def test_otherwise_it_is_printed_and_a_parent_always_gets_it(
    form: str,
    process: int | None,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.INFO)
    serve._say_ready(options(form, process), PLAIN, "127.0.0.1:7400")
    said = "warmpath serves gRPC on 127.0.0.1:7400, without TLS, for any caller\n"
    assert capsys.readouterr().out == said
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        (TLS, "with TLS, for any caller"),
        (TLS + 'client-ca = "a"\n', "with TLS, for any caller with a certificate"),
        (TLS + CLIENT, "with TLS, for [[clients]]: 1"),
    ],
)
def test_the_start_says_whether_there_is_tls_and_who_may_call(
    tables: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = parse(MODEL + tables, "test")
    serve._say_ready(options("text"), config, "127.0.0.1:7400")
    assert capsys.readouterr().out.endswith(f", {said}\n")


def test_a_wrong_file_is_a_line_of_the_log_if_that_is_json(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "router.toml"
    file.write_text("[server]\nlisten =")
    assert serve.main(["--config", str(file), "--log-format", "json"]) == 2
    assert f"{file}:2: " in caplog.text
    assert "warmpath serve:" not in capsys.readouterr().err


@asynccontextmanager
async def telling(look: Callable[[], list[Refused]]) -> AsyncIterator[None]:
    with patch.object(calls, "LOOK_SECONDS", 0.001):
        task = asyncio.create_task(calls._keep_telling(look))
        await asyncio.sleep(0.05)
        yield
        task.cancel()
        await asyncio.wait([task])


async def test_calls_and_connections_that_were_refused_since_the_last_look_are_told_by_limit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused = {"limits.one": 7, "limits.two": 0, "a-limit": 0}
    more = {"a-limit": ("connections", "10.0.0.7:51234")}
    section = "a-section"
    async with telling(
        lambda: [Refused(*one, section, *more.get(one[0], ())) for one in refused.items()]
    ):
        assert not caplog.messages, "those were refused before"
        for at, (limit, count) in enumerate((("limits.one", 3), ("limits.two", 1), ("a-limit", 2))):
            refused[limit] += count
            while len(caplog.messages) == at:
                await asyncio.sleep(0.001)
    runbook = "docs/guides/operate.md#a-section"
    assert caplog.messages == [
        f"3 calls were refused by limits.one: {runbook}",
        f"1 calls were refused by limits.two: {runbook}",
        f"2 connections were refused by a-limit, the last one from 10.0.0.7:51234: {runbook}",
    ]


async def test_a_connection_beyond_the_most_busy_ones_of_its_address_is_counted_and_told_with_its_address(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "LOOK_SECONDS", 0.001)
    tables = '[[models]]\nname = "demo"\n[server.http2]\nmax-connections = 1\n'
    async with running_router(tmp_path, tables, transport="nghttp2") as (router, channel):
        stream = RouterStub(channel).ScoreStream()
        await stream.write(router_pb2.ScoreRequest())
        await stream.read()
        host, _, port = router.address.rpartition(":")
        reader, second = await asyncio.open_connection(host, int(port))
        assert await reader.read() == b""
        text = await metrics_page(router.http_address)
        assert "warmpath_refused_connections_total 1.0" in text
        own, port = second.get_extra_info("sockname")
        limit = "server.http2.max-connections (1)"
        told = f"1 connections were refused by {limit}, the last one from {own}:{port}: "
        while not any(line.startswith(told) for line in caplog.messages):
            await asyncio.sleep(0.01)
        second.close()
        stream.cancel()


@pytest.mark.parametrize(
    ("most", "limit"),
    [(3000, "server.http2.max-connections (3000)"), (9000, "half of the file descriptors (5000)")],
)
def test_the_limit_of_connections_is_the_lesser_and_is_named(
    most: int, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HALF_OF_DESCRIPTORS", 5000)
    text = f"[server.http2]\nmax-connections = {most}\n[[models]]\nname = 'm'\n"
    config = parse(text, "text")
    assert server.limit_of_connections(config) == limit
    assert server.limits_of(config).connections == min(most, 5000)


@pytest.mark.parametrize(
    ("deed", "said"),
    [
        ("os.kill(os.getpid(), 9)", "process 0 was ended by the signal 9 (Killed)"),
        ("sys.exit(3)", "process 0 ended with status 3"),
    ],
)
async def test_the_log_says_how_a_process_has_ended(
    deed: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    script = f"import os, sys; print('it serves', flush=True); {deed}"
    processes = Processes(1, lambda *_: ("-c", script), drain_seconds=1.0)
    running = asyncio.create_task(processes.run(lambda: None))
    while f"{said}; it is started again" not in caplog.text:
        await asyncio.sleep(0.01)
    processes.end()
    await running
