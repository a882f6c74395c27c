"""Loads a front: with requests by h2load, and with streams by a client in a process of its own."""

import asyncio
import json
import random
import shutil
import sys
from asyncio.subprocess import PIPE
from dataclasses import dataclass
from pathlib import Path

from warmpath.cli.child import ChildError
from warmpath.lab.bench.gateways.front import Busy, Front, processor
from warmpath.lab.bench.gateways.pods import TOKENS_A_SECOND
from warmpath.lab.bench.stand.servers import JSON, Load, h2load
from warmpath.lab.local.cluster import MODEL

OPENED = 100
"""Streams that are opened in a second."""
PATH = "/v1/chat/completions"
LETTERS = "aeinorst"


@dataclass(frozen=True, slots=True)
class Requests:
    """Figures of clients that send one request after the other."""

    load: Load
    busy: Busy
    """Processor seconds of the front a request."""


@dataclass(frozen=True, slots=True)
class Streamed:
    """Figures of open streams."""

    p50: float
    """Milliseconds between two tokens of a stream."""
    p99: float
    busy: Busy
    """Processor seconds of the front a token."""
    idle: Busy
    """The part of it that the front takes in the same time without streams."""
    refused: int
    """Streams that were not answered with status 200."""


def text_of(size: int, seed: int = 0) -> str:
    """Return words of `size` bytes; another seed has other words from the first on."""
    rng, text = random.Random(seed), str(seed)
    while len(text) < size:
        text += " " + "".join(rng.choices(LETTERS, k=rng.randint(2, 9)))
    return text[:size]


def chat_of(text: str, tokens: int = 1, *, stream: bool = False) -> bytes:
    """Return the body of a chat with one message; its answer has `tokens` tokens."""
    fields = {"model": MODEL, "max_tokens": tokens, "stream": stream}
    return json.dumps(fields | {"messages": [{"role": "user", "content": text}]}).encode()


def check_h2load() -> None:
    """Raise ChildError if there is no h2load."""
    if shutil.which("h2load") is None:
        raise ChildError("h2load makes the load, and is missing: apt-get install nghttp2-client")


def requests(front: Front, body: bytes, clients: int, seconds: float) -> Requests:
    """Let clients send the same request for some seconds, each one at a time."""
    url = f"http://{front.address}{PATH}"
    before = processor(front)
    load = h2load(url, body, *JSON, f"-D{seconds * 1000:.0f}ms", f"-c{clients}", "-t1")
    used = processor(front) - before
    sent = load.rate * seconds
    return Requests(load, Busy(used.router / sent, used.envoy / sent))


async def streams(
    front: Front,
    text: str,
    count: int,
    seconds: float,
    folder: Path,
    *,
    opening: float | None = None,
) -> Streamed:
    """Let one client read streams for some seconds. Raises ChildError if no token comes."""
    opening = count / OPENED if opening is None else opening
    body = folder / "stream.json"
    tokens = int((opening + seconds + 1) * TOKENS_A_SECOND)
    body.write_bytes(chat_of(text, tokens, stream=True))
    before = processor(front)
    await asyncio.sleep(seconds)
    idle = processor(front) - before
    client = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "warmpath.lab.bench.gateways.streams", str(front.address),
        str(body), str(count), str(opening), str(seconds), stdout=PIPE,
    )  # fmt: skip
    assert client.stdout is not None
    assert await client.stdout.readline() == b"open\n", "the client's log is above"
    before = processor(front)
    assert await client.stdout.readline() == b"over\n", "the client's log is above"
    used = processor(front) - before
    found = json.loads(await client.stdout.readline())
    await client.wait()
    if refused := found["refused"]:
        print(
            f"{front.name} refused {len(refused)} of {count} streams: {refused[0]}", file=sys.stderr
        )
    if not found["tokens"]:
        raise ChildError(f"{front.name} streams no tokens")
    each, of_idle = (
        Busy(one.router / found["tokens"], one.envoy / found["tokens"]) for one in (used, idle)
    )
    return Streamed(found["p50"], found["p99"], each, of_idle, len(refused))
