"""Engines over HTTPS in a whole router, and files of [probe] that are no certificates."""

import asyncio
from pathlib import Path

import grpc.aio
import pytest
from aiohttp import web
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.indexer.trtllm_answers import CREATED, answer
from tests.servers.certificates import Authority
from tests.servers.https import serving
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc
from warmpath.router.assemble.running import running
from warmpath.router.config.read import ConfigError, load, parse


async def test_a_router_asks_an_engine_and_fetches_its_events_over_https(tmp_path: Path) -> None:
    events = [answer(CREATED)]

    async def engine(request: web.Request) -> web.Response:
        if request.path == "/kv_cache_events":
            return web.Response(body=events.pop() if events else b"[]")
        return web.Response()

    authority = Authority(tmp_path)
    async with serving(authority, engine) as address:
        text = (
            '[server]\ndrain-delay-seconds = 0\nlisten = "127.0.0.1:0"\nmetrics-listen = ""\n[[models]]\nname = "m"\n'
            f'[probe]\ninterval-seconds = 0.05\nca = "{authority.ca.name}"\n'
            f'[[pods]]\nid = "p"\nmodel = "m"\naddress = "{address}"\nhttps = true\n'
            f'engine = "trtllm"\nevents = "https://{address}/kv_cache_events"\n'
        )
        async with (
            running(parse(text, "test"), tmp_path) as router,
            grpc.aio.insecure_channel(router.address) as channel,
            asyncio.timeout(60),
        ):
            stub = router_pb2_grpc.RouterStub(channel)
            while True:
                pod = (await stub.ListPods(pb.ListPodsRequest(), timeout=5)).pods[0]
                if (pod.status, pod.ranks[0].trust.level) == ("/health answers", pb.Trust.EXACT):
                    break
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ('ca = "text.pem"\n', ":2: probe.ca: "),
        ('cert = "text.pem"\nkey = "text.pem"\n', ":2: probe.cert: "),
        ('cert = "router.pem"\nkey = "engine.key"\n', ":2: probe.cert: "),
        # OpenSSL would ask at the terminal, and the router wait for it.
        ('cert = "router.pem"\nkey = "locked.key"\n', ":2: probe.cert: "),
    ],
)
def test_files_that_cannot_be_used_are_named_when_the_configuration_is_read(
    tmp_path: Path, table: str, named: str
) -> None:
    authority = Authority(tmp_path)
    authority.certificate("router")
    authority.certificate("engine")
    (tmp_path / "text.pem").write_text("no certificate")
    locked = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    (tmp_path / "locked.key").write_bytes(locked)
    file = tmp_path / "router.toml"
    file.write_text(f'[probe]\n{table}[[models]]\nname = "m"\n')
    with pytest.raises(ConfigError) as error:
        load(file)
    said = str(error.value)
    assert named in said
    assert "cannot be used" in said or "text.pem has no certificate in PEM" in said
