"""The peer: NVIDIA Dynamo's indexer, from the package `ai-dynamo-runtime`, which only benchmarks use.

`make bench` installs it. Without it, figures have no ratio.
"""

import importlib
import json
import urllib.request
from typing import Any

try:
    dynamo: Any = importlib.import_module("dynamo._core")
except ImportError:
    dynamo = None


def is_installed() -> bool:
    """Whether the peer can be measured."""
    return dynamo is not None


class PeerIndex:
    """The peer's radix tree, in this process."""

    def __init__(self, block_size: int) -> None:
        self._tree: Any = dynamo.RadixTree()
        self._block_size = block_size
        self._events = 0

    def hashes(self, tokens: list[int]) -> list[int]:
        """Return the peer's hashes of a prompt's blocks."""
        return list(dynamo.compute_block_hash_for_seq(tokens, self._block_size))

    def store(self, worker: int, hashes: list[int], names: list[int]) -> None:
        """Let a worker hold a prompt's blocks; `names` are the engine's hashes of them."""
        blocks = [
            {"block_hash": name, "tokens_hash": word}
            for name, word in zip(names, hashes, strict=True)
        ]
        data = {"stored": {"parent_hash": None, "blocks": blocks}}
        self._events += 1
        event = {"event_id": self._events, "data": data, "dp_rank": 0}
        self._tree.apply_event(worker, json.dumps(event).encode())

    def scores(self, tokens: list[int]) -> dict[Any, int]:
        """Return how many leading blocks of a prompt each worker holds."""
        found = self._tree.find_matches(dynamo.compute_block_hash_for_seq(tokens, self._block_size))
        return dict(found.scores)


def command(port: int, block_size: int, model: str, events: list[str]) -> list[str]:
    """Return the arguments of `python -m` for the peer's standalone indexer, which follows engines."""
    workers = ",".join(f"{number + 1}={endpoint}" for number, endpoint in enumerate(events))
    return [
        "dynamo.indexer", f"--port={port}", f"--block-size={block_size}", "--threads=4",
        f"--workers={workers}", f"--model-name={model}",
    ]  # fmt: skip


def query_body(tokens: list[int], model: str) -> bytes:
    """Return the body of a query for scores to the peer's standalone indexer."""
    return json.dumps({"token_ids": tokens, "model_name": model}).encode()


def query(port: int, body: bytes) -> dict[str, dict[str, int]]:
    """Ask the peer's standalone indexer; return worker -> rank -> leading tokens that it holds."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/query", body, {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310
        scores: dict[str, dict[str, int]] = json.load(response)["scores"]
        return scores
