"""A whole router with TLS, tokens and certificates: who may ask, files that change, and no secret told."""

import asyncio
import contextlib
import logging
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.router.access.guarded import (
    IDS,
    MODEL,
    REFLECTIONS,
    TOKENS,
    Folder,
    bearer,
    channel_to,
    code_of,
    context_of,
    get,
    serving,
)
from warmpath.cli import check_config
from warmpath.cli.child import Process
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc
from warmpath.router.access.entrance import ROLES
from warmpath.router.calls import llmd as indexer
from warmpath.router.calls.service import SERVICE
from warmpath.router.endpoint_picker.protocol import SERVICE as EXTERNAL_PROCESSOR


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


METHODS = [f"/{of.full_name}/{one.name}" for of in (SERVICE, indexer.SERVICE) for one in of.methods]


async def test_each_method_is_for_those_with_its_role(folder: Folder) -> None:
    refused = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}
    async with serving(folder.config(tls=False)) as router, channel_to(router) as channel:
        for method in (*METHODS, f"/{EXTERNAL_PROCESSOR}/Process", *REFLECTIONS):
            unknown = await code_of(channel, method)
            assert unknown is grpc.StatusCode.UNAUTHENTICATED, method
            for name, role in (("scorer", "score"), ("reader", "read")):
                code = await code_of(channel, method, name)
                if ROLES[method] == role:
                    assert code not in refused, method
                else:
                    assert code is grpc.StatusCode.PERMISSION_DENIED, method


async def test_anybody_may_ask_for_the_health(folder: Folder) -> None:
    async with serving(folder.config(tls=False)) as router, channel_to(router) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest())
        assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
        watch = stub.Watch(health_pb2.HealthCheckRequest())
        assert await watch.read() == answer
        watch.cancel()


async def test_without_clients_anybody_on_this_machine_may_ask(tmp_path: Path) -> None:
    file = tmp_path / "router.toml"
    file.write_text('[server]\nlisten = "127.0.0.1:0"\nmetrics-listen = "127.0.0.1:0"\n' + MODEL)
    async with serving(file) as router, channel_to(router) as channel:
        for method in METHODS:
            code = await code_of(channel, method)
            assert code not in {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}
        assert (await get(router, "/metrics"))[0] == 200


async def test_metrics_are_for_readers_and_probes_for_anybody(
    folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(folder.config(tls=False)) as router:
        assert (await get(router, "/healthz"))[0] == 200
        assert (await get(router, "/readyz"))[0] == 503
        assert (await get(router, "/metrics"))[0] == 401
        status, text = await get(router, "/metrics", "scorer")
        assert (status, text) == (
            403,
            "{\"error\": \"client 'scorer' lacks the role 'read', which metrics needs\"}",
        )
        said = "/metrics: refused to 127.0.0.1: client 'scorer' lacks the role 'read'"
        assert any(message.startswith(said) for message in caplog.messages)
        status, text = await get(router, "/metrics", "reader")
        assert status == 200
        assert 'warmpath_kept_out_total{asked="/metrics",why="unknown"} 1.0' in text
        assert 'warmpath_kept_out_total{asked="/metrics",why="role"} 1.0' in text
        for token in TOKENS.values():
            assert token not in text


@pytest.mark.parametrize("path", ["/query", "/overlap_scores"])
async def test_queries_are_for_scorers(folder: Folder, path: str) -> None:
    async with serving(folder.config(tls=False)) as router, aiohttp.ClientSession() as http:
        for name, expected in (("", 401), ("reader", 403), ("scorer", 503)):
            url = f"http://{router.http_address}{path}"
            headers = dict(bearer(name))
            body = {"model_name": "m", "token_ids": [1]}
            async with http.post(url, json=body, headers=headers) as response:
                text = await response.text()
                assert response.status == expected, text
        assert text == '{"error":"no pod serves the model \'m\'"}'


async def test_a_certificates_name_gives_roles_on_both_listeners(folder: Folder) -> None:
    operator = folder.old.certificate("some-name", "op.example", "spiffe://example/operator")
    other = folder.old.certificate("other", "other.example")
    stranger = folder.new.certificate("stranger", "spiffe://example/operator")
    async with serving(folder.config(tls=True, mutual=True)) as router:
        for shown, code in (
            (operator, grpc.StatusCode.OK),
            (other, grpc.StatusCode.UNAUTHENTICATED),
            (stranger, grpc.StatusCode.UNAVAILABLE),
            (None, grpc.StatusCode.UNAVAILABLE),
        ):
            async with channel_to(router, folder.old, shown) as channel:
                assert await code_of(channel, "/warmpath.v1.Router/ListPods") is code
        async with channel_to(router, folder.old, other) as channel:
            # A token counts beside a certificate that names no client.
            assert (
                await code_of(channel, "/warmpath.v1.Router/ListPods", "reader")
                is grpc.StatusCode.OK
            )
        async with channel_to(router) as channel:
            assert (
                await code_of(channel, "/grpc.health.v1.Health/Check")
                is grpc.StatusCode.UNAVAILABLE
            )
        assert (await get(router, "/metrics", tls=context_of(folder.old, operator)))[0] == 200
        assert (await get(router, "/metrics", tls=context_of(folder.old, other)))[0] == 401
        assert (await get(router, "/metrics", "reader", context_of(folder.old)))[0] == 200
        assert (await get(router, "/healthz", tls=context_of(folder.old)))[0] == 200
        with pytest.raises(aiohttp.ClientError):
            await get(router, "/healthz", tls=context_of(folder.old, stranger))


async def test_new_files_are_taken_and_no_stream_is_dropped(folder: Folder) -> None:
    first = folder.old.certificate("op-1", "spiffe://example/operator")
    second = folder.new.certificate("op-2", "spiffe://example/operator")
    async with (
        serving(folder.config(tls=True, mutual=True)) as router,
        channel_to(router, folder.old, first) as before,
    ):
        stream = router_pb2_grpc.RouterStub(before).ScoreStream()
        await scored(stream, 1)
        folder.rotate()
        while True:
            async with channel_to(router, folder.new, second) as after:
                if await code_of(after, "/warmpath.v1.Router/ListPods") is grpc.StatusCode.OK:
                    break
            await scored(stream, 2)
        await scored(stream, 3)
        # On the open connection new calls are answered too.
        assert await code_of(before, "/warmpath.v1.Router/ListPods") is grpc.StatusCode.OK
        async with channel_to(router, folder.old, first) as late:
            assert (
                await code_of(late, "/warmpath.v1.Router/ListPods") is grpc.StatusCode.UNAVAILABLE
            )
        assert (await get(router, "/metrics", tls=context_of(folder.new, second)))[0] == 200
        stream.cancel()


async def scored(stream: Any, number: int) -> None:
    await stream.write(pb.ScoreRequest(prompt=IDS, request_id=number))
    answer = await stream.read()
    assert answer.request_id == number


async def test_a_new_token_is_taken_and_the_old_one_opens_nothing_new(folder: Folder) -> None:
    async with (
        serving(folder.config(tls=True)) as router,
        channel_to(router, folder.old) as channel,
    ):
        stream = router_pb2_grpc.RouterStub(channel).ScoreStream(metadata=bearer("scorer"))
        await scored(stream, 1)
        (folder.path / "scorer").write_text("the-next-token-of-it")
        while (
            await code_of(channel, "/warmpath.v1.Router/Report", "scorer")
            is not grpc.StatusCode.UNAUTHENTICATED
        ):
            await asyncio.sleep(0.01)
        TOKENS["next"] = "the-next-token-of-it"
        try:
            code = await code_of(channel, "/warmpath.v1.Router/Report", "next")
        finally:
            del TOKENS["next"]
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        await scored(stream, 2)
        stream.cancel()


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
