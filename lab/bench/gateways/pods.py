"""Pods that cost next to nothing: each answers at once, or streams one chunk a token at a fixed pace.

Usage: python -m warmpath.lab.bench.gateways.pods COUNT CHATS
CHATS is a file with a JSON list of the chats that all pods hold: "text", their one message, and "ids",
their tokens, which a request for their rendering gets. It prints a JSON list with an object a pod:
"address" (host:port of its HTTP), "events" and "replay" (endpoints of its events). At a line on standard
input all pods publish what they hold, and "published" is printed.
"""

import asyncio
import heapq
import json
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any, cast

import msgspec
import uvloop
import zmq.asyncio

from warmpath.lab.bench.stand.made_up_fleet import BLOCK_SIZE
from warmpath.lab.local.cluster import MODEL
from warmpath.lab.local.ports import HOST
from warmpath.lab.simworker.events.faulty_outlet import FaultyOutlet
from warmpath.lab.simworker.events.publisher import Journal, Publisher

TOKENS_A_SECOND = 30
"""Pace of a stream."""
END_OF_HEAD = b"\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
CHUNKED = re.compile(rb"transfer-encoding: *chunked", re.IGNORECASE)
STREAMS = re.compile(rb'"stream": *true')
MOST_TOKENS = re.compile(rb'"max_(?:completion_)?tokens": *(\d+)')
USAGE = {
    "prompt_tokens": 1000, "completion_tokens": 1, "total_tokens": 1001,
    "prompt_tokens_details": {"cached_tokens": 992},
}  # fmt: skip


def _response(body: object, kind: str = "application/json", status: str = "200 OK") -> bytes:
    """Return a whole HTTP response."""
    data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(data)}\r\n\r\n"
    return head.encode() + data


def _of_answer(kind: str, **choice: object) -> dict[str, object]:
    choices = [{"index": 0, "logprobs": None, "finish_reason": None, **choice}]
    named = {"id": f"chatcmpl-{'0' * 32}", "object": kind, "created": 1_800_000_000, "model": MODEL}
    return {**named, "choices": choices}


def _chunk(event: object) -> bytes:
    """Return an event of a stream as a chunk of HTTP's chunked encoding."""
    text = event if isinstance(event, str) else json.dumps(event, separators=(",", ":"))
    data = f"data: {text}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


PART = "chat.completion.chunk"
ANSWER = _response(
    {
        **_of_answer(
            "chat.completion", message={"role": "assistant", "content": "ok"}, finish_reason="stop"
        ),
        "usage": USAGE,
    }
)
HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
FIRST = HEAD + _chunk(_of_answer(PART, delta={"role": "assistant", "content": ""}))
NEXT = _chunk(_of_answer(PART, delta={"content": " token"}))
END = b"".join(
    (
        _chunk(_of_answer(PART, delta={}, finish_reason="stop")),
        _chunk({**_of_answer(PART), "choices": [], "usage": USAGE}),
        _chunk("[DONE]"),
        LAST_CHUNK,
    )
)
_MODEL_CARD = {
    "id": MODEL, "object": "model", "created": 1, "owned_by": "vllm", "root": MODEL,
    "max_model_len": 131_072,
}  # fmt: skip
PAGES = {
    b"/v1/models": _response({"object": "list", "data": [_MODEL_CARD]}),
    b"/version": _response({"version": "0.32.0"}),
    b"/health": _response("", "text/plain"),
    b"/metrics": _response("", "text/plain"),
}
RENDER = b"/v1/chat/completions/render"
"""Where vLLM makes the tokens of a chat without answering it."""
MISSING = _response({"detail": "Not Found"}, status="404 Not Found")


class Streams:
    """All streams under way; one timer writes each chunk when it is due."""

    def __init__(self, pace: float = TOKENS_A_SECOND) -> None:
        self._gap = 1 / pace
        self._due: list[tuple[float, int, int, asyncio.WriteTransport]] = []
        """A heap of (time of the next chunk, number of the stream, chunks left, its connection)."""
        self._numbers = count()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, transport: asyncio.WriteTransport, tokens: int) -> None:
        """Write the first chunk now, and `tokens` - 1 more at the pace."""
        transport.write(FIRST)
        now = asyncio.get_running_loop().time()
        heapq.heappush(self._due, (now + self._gap, next(self._numbers), tokens - 1, transport))
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._due:
            self._timer = asyncio.get_running_loop().call_at(self._due[0][0], self._write)

    def _write(self) -> None:
        now = asyncio.get_running_loop().time()
        while self._due and self._due[0][0] <= now:
            due, number, left, transport = self._due[0]
            if left <= 0 or transport.is_closing():
                heapq.heappop(self._due)
                if not transport.is_closing():
                    transport.write(END)
                continue
            transport.write(NEXT)
            heapq.heapreplace(self._due, (due + self._gap, number, left - 1, transport))
        self._set_timer()


class PodConnection(asyncio.Protocol):
    """A connection of HTTP/1.1 without pipelining."""

    def __init__(self, streams: Streams, rendered: Mapping[bytes, bytes]) -> None:
        """Answer requests; `rendered` has the response of RENDER for each text in a body."""
        self._streams = streams
        self._rendered = rendered
        self._buffer = bytearray()
        self._end: int | None = None
        """Where the request ends in the buffer; None: its head is not whole; 0: at its last chunk."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        if self._end is None:
            end_of_head = buffer.find(END_OF_HEAD)
            if end_of_head < 0:
                return
            body = end_of_head + len(END_OF_HEAD)
            length = LENGTH.search(buffer, 0, end_of_head)
            is_chunked = CHUNKED.search(buffer, 0, end_of_head)
            self._end = 0 if is_chunked else body + int(length[1]) if length else body
        if len(buffer) >= self._end if self._end else buffer.endswith(LAST_CHUNK):
            self._answer()
            self._end = None
            buffer.clear()

    def _answer(self) -> None:
        method, path, _ = self._buffer.split(b" ", 2)
        if method != b"POST":
            self._transport.write(PAGES.get(bytes(path), MISSING))
        elif path == RENDER:
            known = (one for text, one in self._rendered.items() if text in self._buffer)
            self._transport.write(next(known, MISSING))
        elif STREAMS.search(self._buffer):
            tokens = MOST_TOKENS.search(self._buffer)
            self._streams.begin(self._transport, int(tokens[1]) if tokens else 1)
        else:
            self._transport.write(ANSWER)


def stored(prompts: Sequence[Sequence[int]]) -> Iterator[bytes]:
    """Yield vLLM's batches that store prompts' full blocks, a batch for each prompt."""
    names = count(1)
    for prompt in prompts:
        blocks = len(prompt) // BLOCK_SIZE
        event = {
            "type": "BlockStored",
            "block_hashes": [*islice(names, blocks)],
            "parent_block_hash": None,
            "token_ids": prompt[: blocks * BLOCK_SIZE],
            "block_size": BLOCK_SIZE,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
        }
        yield msgspec.msgpack.encode([time.time(), [event], 0])


def _publisher(context: zmq.asyncio.Context) -> Publisher:
    return Publisher(
        context, f"tcp://{HOST}:*", f"tcp://{HOST}:*", topic="", journal=Journal(1000),
        outlet=FaultyOutlet(), replays_topic=False, clock=time.monotonic,
    )  # fmt: skip


async def _serve(pods: int, chats: Sequence[dict[str, Any]]) -> None:
    rendered = {
        one["text"].encode(): _response({"request_id": "1", "token_ids": one["ids"]})
        for one in chats
    }
    loop, context, streams = asyncio.get_running_loop(), zmq.asyncio.Context(), Streams()
    publishers = [_publisher(context) for _ in range(pods)]
    servers = [
        await loop.create_server(lambda: PodConnection(streams, rendered), HOST, 0, backlog=1024)
        for _ in publishers
    ]
    replays = [asyncio.create_task(one.serve_replay()) for one in publishers]
    addresses = [server.sockets[0].getsockname() for server in servers]
    listed = [
        {"address": f"{HOST}:{at[1]}", "events": one.endpoint, "replay": one.replay_endpoint}
        for at, one in zip(addresses, publishers, strict=True)
    ]
    print(json.dumps(listed), flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        for one in publishers:
            for batch in stored([one["ids"] for one in chats]):
                one.publish(batch)
        print("published", flush=True)
    for task in replays:
        task.cancel()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1]), json.loads(Path(sys.argv[2]).read_bytes())))
