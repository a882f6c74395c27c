"""Handlers served over either transport, and a client of them."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any, Self

import grpc
import grpc.aio
import pytest

from warmpath.h2grpc.http2.library import LibraryError, load_library
from warmpath.h2grpc.http2.limits import Http2Limits
from warmpath.h2grpc.method import Method, RefusedError
from warmpath.router.transport.call import Call, refused
from warmpath.router.transport.grpcio import GrpcioServer
from warmpath.router.transport.nghttp2 import Nghttp2Server

Server = Nghttp2Server | GrpcioServer

SERVICE = "test.Echo"
LIMITS = Http2Limits()

try:
    load_library()
    MISSING = ""
except LibraryError as error:
    MISSING = str(error)

NGHTTP2 = pytest.param("nghttp2", marks=pytest.mark.skipif(bool(MISSING), reason=MISSING))
BOTH = [NGHTTP2, "grpcio"]


def new_server(transport: str, methods: Mapping[str, Method], **limits: Any) -> Server:
    """Return a server with other limits than the default ones."""
    kinds: dict[str, Callable[[Mapping[str, Method], Http2Limits], Server]] = {
        "nghttp2": Nghttp2Server,
        "grpcio": GrpcioServer,
    }
    return kinds[transport](methods, replace(LIMITS, **limits))


def methods_of(service: str = SERVICE, **functions: Any) -> dict[str, Method]:
    """Return methods by full name; each is a function, whose name begins with its kind, as in `uu_x`.

    u: one message, s: a stream; first of requests, then of responses. A function takes the message, or
    an iterator of messages, and the call. It returns the answer, yields the answers or writes them.
    """
    return {f"/{service}/{name}": Method(_run(name, one)) for name, one in functions.items()}


def _run(name: str, function: Any) -> Any:
    async def run(call: Call) -> None:
        asked: Any = each_of(call) if name.startswith("s") else await call.read()
        if asked is None:
            code, text = grpc.StatusCode.INTERNAL, "the call has no message"
            raise RefusedError(refused(code, text, "BAD_CALL"))
        answer = function(asked, call)
        if hasattr(answer, "__aiter__"):
            async for one in answer:
                await call.write(one)
        elif (one := await answer) is not None:
            call.put(one)

    return run


async def each_of(call: Call) -> AsyncIterator[bytes]:
    while (message := await call.read()) is not None:
        yield message


async def echo(request: bytes, _: Call) -> bytes:
    return request


async def each(requests: AsyncIterator[bytes], _: Call) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


@asynccontextmanager
async def serving(
    transport: str,
    *,
    address: str = "127.0.0.1:0",
    limits: dict[str, Any] | None = None,
    **methods: Any,
) -> AsyncIterator[str]:
    """Serve methods while the context is open; yield the address."""
    server = new_server(transport, methods_of(**methods), **(limits or {}))
    bound = await server.start(address)
    try:
        yield bound
    finally:
        await server.stop(0)


class Caller:
    """Calls methods by their name. An async context manager."""

    def __init__(self, address: str, **options: int) -> None:
        self.channel = grpc.aio.insecure_channel(
            address, options=[(f"grpc.{name}", value) for name, value in options.items()]
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()

    def __call__(self, name: str, request: Any = b"", **options: Any) -> Any:
        """Begin a call; `request` is a message, or an iterator of messages."""
        kinds = {
            "uu": self.channel.unary_unary,
            "us": self.channel.unary_stream,
            "su": self.channel.stream_unary,
            "ss": self.channel.stream_stream,
        }
        multicallable: Any = kinds[name[:2]](f"/{SERVICE}/{name}")
        return multicallable(request, **options)


@asynccontextmanager
async def calling(
    transport: str, *, limits: dict[str, Any] | None = None, **methods: Any
) -> AsyncIterator[Caller]:
    """Serve methods, and yield a client of them."""
    async with serving(transport, limits=limits, **methods) as address, Caller(address) as call:
        yield call


@contextmanager
def ends_with(
    code: grpc.StatusCode, text: str | None = None
) -> "Iterator[pytest.ExceptionInfo[grpc.aio.AioRpcError]]":
    """Expect that a call ends with a status; with `text`, that its details contain it."""
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        yield raised
    assert raised.value.code() is code, raised.value
    if text is not None:
        assert text in (raised.value.details() or "")


def _numbers(asked: bytes) -> list[int]:
    return [*map(int, re.findall(rb"[0-9]{1,7}", asked)), 0, 0]


class Service:
    """Methods that answer at once, never, at length or bit by bit; counts the handlers that run."""

    def __init__(self) -> None:
        self.begun: Counter[str] = Counter()
        self.running: Counter[str] = Counter()
        self.read: list[bytes] = []
        """Messages of Take."""

    def methods(self) -> dict[str, Method]:
        functions = {
            "uu_Echo": echo,
            "uu_Hold": self._hold,
            "uu_Large": self._large,
            "us_Many": self._many,
            "su_Take": self._take,
            "su_Deaf": self._hold,
            "uu_Once": echo,
            "ss_Each": self._each,
        }
        counted = {kind: self._counted(kind[3:], run) for kind, run in functions.items()}
        found = {f"/t.T/{name[8:]}": one for name, one in methods_of("t.T", **counted).items()}
        found["/t.T/Once"] = replace(found["/t.T/Once"], at_once=self._at_once)
        return found

    def _counted(self, name: str, run: Callable[..., Any]) -> Callable[..., Any]:
        async def counted(asked: Any, context: Any) -> Any:
            self.begun[name] += 1
            self.running[name] += 1
            try:
                return await run(asked, context)
            finally:
                self.running[name] -= 1

        return counted

    def _at_once(self, asked: bytes, _: Any) -> bytes | None:
        return None if b"wait" in asked else asked

    async def _hold(self, _: Any, __: Any) -> None:
        await asyncio.Event().wait()

    async def _large(self, asked: bytes, _: Any) -> bytes:
        return bytes(_numbers(asked)[0])

    async def _many(self, asked: bytes, context: Any) -> None:
        count, size = _numbers(asked)[:2]
        for _ in range(count):
            await context.write(bytes(size))

    async def _take(self, asked: Any, _: Any) -> bytes:
        async for one in asked:
            self.read.append(one)
        return b"%d" % len(self.read)

    async def _each(self, asked: Any, context: Any) -> None:
        async for one in asked:
            await context.write(one)
