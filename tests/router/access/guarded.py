"""A router with TLS, tokens and certificates, and calls that show them."""

import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import grpc.aio

from tests.servers.certificates import Authority, Certificate
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.assemble.running import Running, running
from warmpath.router.config.read import load

TOKENS = {"scorer": "token-of-the-scorer", "reader": "token-of-the-reader"}
MODEL = '[[models]]\nname = "m"\n'
IDS = pb.Prompt(model="m", token_ids_packed=bytes(4))
REFLECTIONS = tuple(
    f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
    for version in ("v1", "v1alpha")
)


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
    # On the wire it is as good as any kind. gRPC's client of streams says INTERNAL if a server refuses
    # its call before it has written the message.
    call = channel.unary_unary(method)(b"", metadata=bearer(name))
    with contextlib.suppress(grpc.aio.AioRpcError):
        await call
    return await call.code()


async def get(router: Running, path: str, name: str = "", tls: Any = None) -> tuple[int, str]:
    scheme = "https" if tls else "http"
    headers = {key.title(): value for key, value in bearer(name)}
    url = f"{scheme}://{router.http_address}{path}"
    async with (
        aiohttp.ClientSession() as http,
        http.get(url, headers=headers, ssl=tls or True) as it,
    ):
        return it.status, await it.text()


def context_of(authority: Authority, shown: Certificate | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.ca)
    if shown is not None:
        context.load_cert_chain(shown.cert, shown.key)
    return context
