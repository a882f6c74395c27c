"""The server over libnghttp2, where it can do more than gRPC's own, or does it otherwise."""

import asyncio
import subprocess
import sys
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from tests.h2grpc.served import MISSING, SERVICE, Caller, calling, echo, serving
from warmpath.h2grpc.http2.library import LibraryError, load_library
from warmpath.h2grpc.http2.limits import Http2Limits
from warmpath.router.calls.server import new_server
from warmpath.router.transport.call import Call
from warmpath.router.transport.grpcio import GrpcioServer
from warmpath.router.transport.nghttp2 import Nghttp2Server

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)


async def test_more_calls_than_a_connection_may_have_wait_for_their_turn() -> None:
    running = most = 0

    async def count(request: bytes, _: Call) -> bytes:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return request

    async with calling("nghttp2", limits={"streams": 4}, uu=count) as call:
        messages = [b"%d" % number for number in range(60)]
        assert await asyncio.gather(*(call("uu", message) for message in messages)) == messages
    assert most <= 4


async def test_an_idle_connection_gives_way_and_its_client_connects_again() -> None:
    one = {"connections": 1}
    async with serving("nghttp2", limits=one, uu=echo) as address, Caller(address) as call:
        assert await call("uu", b"x") == b"x"
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        assert await reader.read(1)
        assert await call("uu", b"x") == b"x"
        await reader.read()
        writer.close()


async def run(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    printed, _ = await process.communicate()
    assert process.returncode == 0, printed.decode(errors="replace")
    return printed.decode(errors="replace")


@pytest.fixture
def body(tmp_path: Path) -> str:
    path = tmp_path / "body"
    path.write_bytes(b"\0\0\0\0\5hello")
    return str(path)


@pytest.mark.skipif(not which("h2load"), reason="h2load is not installed (nghttp2-client)")
async def test_h2load_gets_an_answer_to_each_of_many_calls(body: str) -> None:
    async with serving("nghttp2", uu=echo) as address:
        printed = await run(
            "h2load", "-n2000", "-c10", "-m20", "-H", "content-type: application/grpc",
            "-d", body, f"http://{address}/{SERVICE}/uu",
        )  # fmt: skip
    assert "2000 succeeded, 0 failed, 0 errored, 0 timeout" in printed


@pytest.mark.skipif(not which("curl"), reason="curl is not installed")
async def test_curl_is_answered_and_told_what_is_not_grpc(body: str) -> None:
    def curl(address: str, *options: str) -> Any:
        return run(
            "curl", "--silent", "--http2-prior-knowledge", "--include", *options,
            f"http://{address}/{SERVICE}/uu",
        )  # fmt: skip

    grpc_type = ("-H", "content-type: application/grpc", "--data-binary", f"@{body}")
    async with serving("nghttp2", uu=echo) as address:
        answer = await curl(address, *grpc_type)
        assert "HTTP/2 200" in answer
        assert "grpc-status: 0" in answer
        assert "hello" in answer
        assert "HTTP/2 415" in await curl(address, "--data", "x")
        assert "HTTP/2 405" in await curl(address, "--request", "GET", *grpc_type[:2])


def test_without_numba_there_is_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "warmpath.h2grpc.http2.compile", None)
    with pytest.raises(LibraryError, match="Numba, which calls libnghttp2, is not installed"):
        load_library.__wrapped__()


async def test_the_log_says_which_transport_is_used_and_why(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    assert isinstance(new_server("auto", {}, Http2Limits()), Nghttp2Server)
    assert isinstance(new_server("grpcio", {}, Http2Limits()), GrpcioServer)

    def missing() -> None:
        raise LibraryError("libnghttp2 1.52.0 does not limit resets of streams")

    monkeypatch.setattr("warmpath.router.calls.server.load_library", missing)
    assert isinstance(new_server("auto", {}, Http2Limits()), GrpcioServer)
    with pytest.raises(OSError, match=r"^server\.transport: libnghttp2"):
        new_server("nghttp2", {}, Http2Limits())
    said = [record.getMessage() for record in caplog.records]
    assert said[0].startswith("transport: nghttp2, libnghttp2 1.")
    assert said[1:] == [
        "transport: grpcio, as server.transport says",
        "transport: grpcio: libnghttp2 1.52.0 does not limit resets of streams",
    ]
