"""Engines that only publish events: as many as are asked for, as fast as they can or at a pace.

`python -m bench.flood ENDPOINT…` binds a publisher to each endpoint and takes orders on standard
input, one JSON object a line: {"pods", "seed", "prompts", "blocks", "events", "each", "pace"}. It makes
the messages first and says "made"; at the next line it sends them and says "sent".
"""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from random import Random

import msgspec
import numpy as np
import zmq

from bench.fleet import BLOCK_SIZE, VOCAB_SIZE


def prompt_of(seed: int, blocks: int) -> list[int]:
    """Return the made-up prompt with a seed, of so many full blocks and one token."""
    rng = np.random.default_rng(seed)
    tokens: list[int] = rng.integers(0, VOCAB_SIZE, blocks * BLOCK_SIZE + 1).tolist()
    return tokens


def batches_of(
    seed: int, blocks: int, *, events: int, each: int, owner: int = 0, removes: bool = False
) -> Iterator[bytes]:
    """Yield vLLM's batches that store a prompt: `events` a batch, of `each` blocks.

    Engines with another `owner` give other names. With `removes` each stored event is removed again by
    the next batch.
    """
    rng = Random(seed * 1_000_003 + owner)
    prompt = prompt_of(seed, blocks)
    parent = None
    batch: list[dict[str, object]] = []
    gone: list[dict[str, object]] = []
    for start in range(0, blocks, each):
        names = [rng.getrandbits(64) | 1 for _ in range(min(each, blocks - start))]
        tokens = prompt[start * BLOCK_SIZE : (start + len(names)) * BLOCK_SIZE]
        batch.append(
            {
                "type": "BlockStored",
                "block_hashes": names,
                "parent_block_hash": parent,
                "token_ids": tokens,
                "block_size": BLOCK_SIZE,
                "lora_id": None,
                "medium": "GPU",
                "lora_name": None,
            }
        )
        gone.append({"type": "BlockRemoved", "block_hashes": names[::-1], "medium": "GPU"})
        parent = names[-1]
        if len(batch) == events:
            yield msgspec.msgpack.encode([0.0, batch, 0])
            batch = []
    if batch:
        yield msgspec.msgpack.encode([0.0, batch, 0])
    if removes:
        yield msgspec.msgpack.encode([0.0, gone[::-1], 0])


def main(endpoints: Sequence[str]) -> None:
    """Publish what is asked for."""
    context = zmq.Context()
    sockets = []
    for endpoint in endpoints:
        socket = context.socket(zmq.PUB)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind(endpoint)
        sockets.append(socket)
    sequences = [0] * len(sockets)
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        messages = list(_messages(order, sequences))
        print("made", flush=True)
        sys.stdin.readline()
        _send(sockets, messages, order["pace"])
        print("sent", flush=True)


def _messages(
    order: dict[str, int], sequences: list[int]
) -> Iterator[tuple[int, bytes, bytes, int]]:
    for prompt in range(order["prompts"]):
        for pod in range(order["pods"]):
            for payload in batches_of(
                order["seed"] + prompt,
                order["blocks"],
                events=order["events"],
                each=order["each"],
                removes=bool(order.get("removes")),
            ):
                yield (
                    pod,
                    sequences[pod].to_bytes(8, "big"),
                    payload,
                    order["events"] * order["each"],
                )
                sequences[pod] += 1


def _send(
    sockets: Sequence["zmq.Socket[bytes]"],
    messages: list[tuple[int, bytes, bytes, int]],
    pace: int,
) -> None:
    """Send everything; at most `pace` blocks a second where that is not 0."""
    begun = time.perf_counter()
    done = 0
    for pod, sequence, payload, blocks in messages:
        sockets[pod].send_multipart((b"", sequence, payload))
        done += blocks
        if pace:
            ahead = begun + done / pace - time.perf_counter()
            if ahead > 0.001:
                time.sleep(ahead)


if __name__ == "__main__":
    main(sys.argv[1:])
