"""A whole router with TLS, tokens and certificates: what each may ask, and files that change."""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from router.access.roles import ROLES
from router.api.service import SERVICE
from router.assemble import Running, running
from router.commands import check_config
from router.config.read import load
from router.pb.warmpath.v1 import router_pb2 as pb
from router.pb.warmpath.v1 import router_pb2_grpc
from tests.servers.certificates import Authority, Certificate

TOKENS = {"scorer": "token-of-the-scorer", "reader": "token-of-the-reader"}
MODEL = '[[models]]\nname = "m"\n'
IDS = pb.Prompt(model="m", token_ids_packed=bytes(4))
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


class Folder:
    """A router's folder: its configuration, certificates and tokens."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.old, self.new = Authority(path, "old"), Authority(path, "new")
        self.files = self.old.certificate("first").copy("router")
        self.ca = path / "clients.pem"
        self.ca.write_bytes(self.old.ca.read_bytes())
        for name, token in TOKENS.items():
            (path / name).write_text(token)

    def config(self, *, tls: bool, mutual: bool = False, more: str = "") -> Path:
        lines = [
            '[server]\nlisten = "127.0.0.1:0"\nmetrics-listen = "127.0.0.1:0"\ndrain-seconds = 0.5'
        ]
        if tls:
            lines.append('[server.tls]\ncert = "router.pem"\nkey = "router.key"')
        if mutual:
            lines.append('client-ca = "clients.pem"')
            lines.append(
                '[[clients]]\nname = "operator"\nroles = ["read", "score"]\n'
                'certificate = "spiffe://example/operator"'
            )
        for name, role in (("scorer", "score"), ("reader", "read")):
            lines.append(f'[[clients]]\nname = "{name}"\nroles = ["{role}"]\ntoken-file = "{name}"')
        file = self.path / "router.toml"
        file.write_text("\n".join([*lines, MODEL + more]))
        return file

    def rotate(self) -> None:
        self.files.replace(self.new.certificate("second"))
        self.ca.write_bytes(self.new.ca.read_bytes())


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@asynccontextmanager
async def serving(file: Path) -> AsyncIterator[Running]:
    async with running(load(file), file.parent) as router:
        yield router


def channel_to(
    router: Running, authority: Authority | None = None, shown: Certificate | None = None
) -> grpc.aio.Channel:
    if authority is None:
        return grpc.aio.insecure_channel(router.address)
    pair = (shown.key.read_bytes(), shown.cert.read_bytes()) if shown else (None, None)
    credentials = grpc.ssl_channel_credentials(authority.ca.read_bytes(), *pair)
    return grpc.aio.secure_channel(router.address, credentials)


def bearer(name: str) -> tuple[tuple[str, str], ...]:
    token = TOKENS.get(name)
    return (("authorization", f"Bearer {token}"),) if token else ()


async def code_of(channel: grpc.aio.Channel, method: str, name: str = "") -> grpc.StatusCode:
    """Return the status of a call that sends one empty message."""
    call = channel.stream_stream(method)(iter([b""]), metadata=bearer(name))
    try:
        async for _ in call:
            pass
    except grpc.aio.AioRpcError:
        pass
    return await call.code()


METHODS = [one.name for one in SERVICE.methods]


async def test_each_method_is_for_those_with_its_role(folder: Folder) -> None:
    refused = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}
    async with serving(folder.config(tls=False)) as router, channel_to(router) as channel:
        for method in [f"/{SERVICE.full_name}/{name}" for name in METHODS] + [REFLECTION]:
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
        for name in METHODS:
            code = await code_of(channel, f"/{SERVICE.full_name}/{name}")
            assert code not in {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}
        assert (await get(router, "/metrics"))[0] == 200


async def get(router: Running, path: str, name: str = "", tls: Any = None) -> tuple[int, str]:
    scheme = "https" if tls else "http"
    headers = {key.title(): value for key, value in bearer(name)}
    url = f"{scheme}://{router.http_address}{path}"
    async with (
        aiohttp.ClientSession() as http,
        http.get(url, headers=headers, ssl=tls or True) as it,
    ):
        return it.status, await it.text()


async def test_metrics_are_for_readers_and_probes_for_anybody(folder: Folder) -> None:
    async with serving(folder.config(tls=False)) as router:
        assert (await get(router, "/healthz"))[0] == 200
        assert (await get(router, "/readyz"))[0] == 503
        assert (await get(router, "/metrics"))[0] == 401
        status, text = await get(router, "/metrics", "scorer")
        assert (status, text) == (
            403,
            "client 'scorer' lacks the role 'read', which metrics needs\n",
        )
        status, text = await get(router, "/metrics", "reader")
        assert status == 200
        assert 'warmpath_kept_out_total{asked="/metrics",why="unknown"} 1.0' in text
        assert 'warmpath_kept_out_total{asked="/metrics",why="role"} 1.0' in text
        for token in TOKENS.values():
            assert token not in text


def context_of(authority: Authority, shown: Certificate | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.ca)
    if shown is not None:
        context.load_cert_chain(shown.cert, shown.key)
    return context


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
            await code_of(channel, "/warmpath.v1.Router/Explain", "scorer")
            is not grpc.StatusCode.UNAUTHENTICATED
        ):
            await asyncio.sleep(0.01)
        TOKENS["next"] = "the-next-token-of-it"
        try:
            code = await code_of(channel, "/warmpath.v1.Router/Explain", "next")
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
        while caplog.text.count("stays in use") < 3:
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
