"""Prints a module of warmpath/client/, made of the one for asyncio (`make client`)."""

import re
import sys
from pathlib import Path

from warmpath.client import async_client

FOLDER = Path(async_client.__file__).parent
ALL = (
    (r"asynccontextmanager", "contextmanager"),
    (r"\bAsyncIterator\b", "Iterator"),
    (r"\b(async|await) ", ""),
    (r"\basync_(client|transport)\b", r"sync_\1"),
    (r"\bAsync(Client|Transport)\b", r"\1"),
    (r"\b__a(enter|exit|iter)__", r"__\1__"),
)
"""Differences in every module: (expression, its replacement)."""
CLIENT = (
    (r'"""The client of a router for asyncio."""',
     '"""The client of a router for code that blocks: made of async_client.py by `make client`."""'),
    (r"import asyncio\n", "import time\n"),
    (r"import grpc\.aio\n", ""),
    (r"            except asyncio\.CancelledError:\n(?: {16}.*\n)+", ""),
    (r"AsyncIterable\[AnyPrompt\] \| ", ""),
    (r"AsyncIterable, AsyncIterator, Iterable,", "Iterable, Iterator,"),
    (r"An asynchronous context manager; use it from one event loop",
     "A context manager; any number of threads may use one client"),
    (r"`prompts` is read as fast as the\n        router takes them\. The stream",
     "`prompts` is read in a thread of\n        gRPC's, as fast as the router takes them. The stream"),
    (r"asyncio\.sleep", "time.sleep"),
    (r"each_async", "each"),
    (r"grpc\.aio\.", "grpc."),
    (r"\bTask\b", "Thread"),
)  # fmt: skip
TRANSPORT = (
    (r"for asynchronous clients of httpx2 and httpx:", "for blocking clients of httpx2 and httpx:"),
    (r"handle_async_request", "handle_request"),
    (r"\ba(read|close)\b", r"\1"),
    (r"AsyncByteStream", "SyncByteStream"),
    (r"Async(BaseTransport|HTTPTransport)", r"\1"),
)  # fmt: skip
CHANGES = {"client": CLIENT, "transport": TRANSPORT}
"""Module -> its differences in addition to ALL; each expression must be found."""


def sync_module(name: str) -> str:
    """Return sync_NAME.py, not formatted yet."""
    text = (FOLDER / f"async_{name}.py").read_text()
    for found, instead in CHANGES[name]:
        text, count = re.subn(found, instead, text)
        if not count:
            raise ValueError(f"async_{name}.py has no {found!r}")
    for found, instead in ALL:
        text = re.sub(found, instead, text)
    return text


if __name__ == "__main__":
    sys.stdout.write(sync_module(sys.argv[1]))
