"""Messages that a handler puts go out together: when it waits for its client, when it drains, at its end."""

import asyncio
import gzip
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.h2grpc.served import MISSING
from tests.h2grpc.stand import ClientStand
from warmpath.h2grpc.framing import framed
from warmpath.h2grpc.http2.limits import Http2Limits
from warmpath.h2grpc.method import Method

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

WHOLE = framed(b"one") + framed(b"two")
FIRST = framed(b"first")
CAME = FIRST, framed(b"second")


class Stand(ClientStand):
    """A connection with one call, whose handler is the given one; its window takes `window` bytes."""

    def __init__(
        self,
        handler: Callable[[Any], Awaitable[None]],
        *sent: bytes,
        window: int = 1000,
        most: int = 1000,
    ) -> None:
        """Send FIRST, with which the handler runs, and `sent` behind it; a message may have `most` bytes."""
        super().__init__(
            {"/t.T/Put": Method(handler)}, Http2Limits(message_bytes=most), window=window
        )
        self.stream = self.client.begin(b"/t.T/Put", (b"grpc-encoding", b"gzip"))
        self.client.put(self.stream, b"".join((FIRST, *sent)))
        self.socket.writes.clear()
        self.carry()

    @property
    def answer(self) -> bytes:
        return bytes(self.client.requests[self.stream].answer)


def put_both(call: Any) -> None:
    assert call.put(b"one") == len(framed(b"one"))
    assert call.put(b"two") == len(WHOLE)


async def wait_for_the_client(call: Any) -> None:
    assert call.take() in (b"first", None)
    put_both(call)
    await call.read()


async def wait_after_what_came(call: Any) -> None:
    for message in (b"first", b"second"):
        assert call.take() == message
    assert call.take() is None
    await wait_for_the_client(call)


async def drain_and_wait(call: Any) -> None:
    assert call.take() == b"first"
    put_both(call)
    await call.drain()
    await call.read()


async def end(call: Any) -> None:
    put_both(call)


@pytest.mark.parametrize(
    "handler", [wait_for_the_client, wait_after_what_came, drain_and_wait, end]
)
def test_they_go_out_in_one_write(handler: Callable[[Any], Awaitable[None]]) -> None:
    stand = Stand(handler, *(CAME[1:] if handler is wait_after_what_came else ()))
    assert stand.answer == WHOLE
    assert len(stand.socket.writes) == 1
    assert ("grpc-status" in stand.client.requests[stand.stream].headers) == (handler is end)
    stand.close()


PACKED = gzip.compress(b"zeros", mtime=0)


@pytest.mark.parametrize(
    ("came", "rest", "read"),
    [
        (b"", framed(b"one"), b"one"),
        (framed(b"one")[:4], framed(b"one")[4:], b"one"),
        (framed(b"one")[:6], framed(b"one")[6:], b"one"),
        (b"\1" + len(PACKED).to_bytes(4, "big") + PACKED, b"", b"zeros"),
        (framed(bytes(101)), b"", None),
    ],
)
def test_what_is_not_whole_or_not_plain_is_not_at_hand(
    came: bytes, rest: bytes, read: bytes | None
) -> None:
    found = []

    async def handler(call: Any) -> None:
        assert call.take() == b"first"
        assert call.take() is None
        found.append(await call.read())

    stand = Stand(handler, came, most=100)
    if rest:
        stand.client.put(stand.stream, rest)
        stand.carry()
    assert found == ([] if read is None else [read])
    status = b"8" if read is None else b"0"
    assert stand.client.requests[stand.stream].headers["grpc-status"] == status
    stand.close()


def test_draining_lasts_until_the_window_has_taken_all() -> None:
    steps = []

    async def handler(call: Any) -> None:
        put_both(call)
        await call.drain()
        steps.append("drained")

    stand = Stand(handler, window=10)
    assert stand.answer == WHOLE[:10]
    assert steps == []
    stand.client.consume(stand.stream, 10)
    stand.carry()
    assert stand.answer == WHOLE
    assert steps == ["drained"]
    stand.close()


def test_nothing_can_be_put_once_the_client_is_gone() -> None:
    refused = []

    async def handler(call: Any) -> None:
        assert call.take() == b"first"
        try:
            await call.read()
        except BaseException:
            with pytest.raises(asyncio.CancelledError):
                call.put(b"one")
            refused.append(True)
            raise

    stand = Stand(handler)
    stand.client.reset(stand.stream)
    stand.carry()
    assert refused == [True]
    stand.close()
