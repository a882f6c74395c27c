"""Prints warmpath/client/sync_client.py, made of async_client.py (`make client`)."""

import re
import sys
from pathlib import Path

from warmpath.client import async_client

SOURCE = Path(async_client.__file__)

CHANGES = (
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
    (r"asynccontextmanager", "contextmanager"),
    (r"\b__a(enter|exit)__", r"__\1__"),
    (r"\b(async|await) ", ""),
    (r"grpc\.aio\.", "grpc."),
    (r"\bAsync(Client|Iterator)\b", r"\1"),
)  # fmt: skip
"""What differs: an expression, and what takes its place."""


def sync_client() -> str:
    """Return the module, not formatted yet."""
    text = SOURCE.read_text()
    for found, instead in CHANGES:
        text, count = re.subn(found, instead, text)
        if not count:
            raise ValueError(f"async_client.py has no {found!r}")
    return text


if __name__ == "__main__":
    sys.stdout.write(sync_client())
