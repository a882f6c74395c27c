"""A service of a few methods for tests of the transport."""

import asyncio
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import grpc

from warmpath.proto.errors import Reason, details
from warmpath.router.transport.call import AtOnceHandler


def _numbers(asked: bytes) -> list[int]:
    return [*map(int, re.findall(rb"[0-9]{1,7}", asked)), 0, 0]


class Service:
    """Methods that answer at once, never, at length or bit by bit; counts the handlers that run."""

    def __init__(self) -> None:
        self.begun: Counter[str] = Counter()
        self.running: Counter[str] = Counter()
        self.read: list[bytes] = []
        """Messages of Take."""

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handlers of the service."""
        return grpc.method_handlers_generic_handler(
            "t.T",
            {
                "Echo": grpc.unary_unary_rpc_method_handler(self._counted("Echo", self._echo)),
                "Hold": grpc.unary_unary_rpc_method_handler(self._counted("Hold", self._hold)),
                "Large": grpc.unary_unary_rpc_method_handler(self._counted("Large", self._large)),
                "Many": grpc.unary_stream_rpc_method_handler(self._counted("Many", self._many)),
                "Take": grpc.stream_unary_rpc_method_handler(self._counted("Take", self._take)),
                "Deaf": grpc.stream_unary_rpc_method_handler(self._counted("Deaf", self._deaf)),
                "Once": AtOnceHandler(self._counted("Once", self._once), self._at_once),
                "Each": grpc.stream_stream_rpc_method_handler(self._counted("Each", self._each)),
            },
        )

    def _counted(self, name: str, run: Callable[..., Any]) -> Callable[..., Any]:
        async def counted(asked: Any, context: Any) -> Any:
            self.begun[name] += 1
            self.running[name] += 1
            try:
                return await run(asked, context)
            finally:
                self.running[name] -= 1

        return counted

    async def _echo(self, asked: bytes, _: Any) -> bytes:
        return asked

    def _at_once(self, asked: bytes, _: Any) -> bytes | None:
        return None if b"wait" in asked else asked

    async def _once(self, asked: Any, context: Any) -> bytes:
        async for one in asked:
            return bytes(one)
        code, text = grpc.StatusCode.INTERNAL, "the call has no message"
        return bytes(await context.abort(code, text, details(code, text, Reason.BAD_CALL)))

    async def _hold(self, _: bytes, __: Any) -> bytes:
        await asyncio.Event().wait()
        return b""

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

    async def _deaf(self, _: Any, __: Any) -> bytes:
        await asyncio.Event().wait()
        return b""

    async def _each(self, asked: Any, context: Any) -> None:
        async for one in asked:
            await context.write(one)
