"""Engines that only publish events, as fast as they can or at a pace.

`python -m warmpath.lab.bench.stand.flood COUNT` binds COUNT publishers and prints their endpoints as a
JSON list. It reads orders from standard input, one JSON object a line: {"pods", "seed", "prompts",
"blocks", "events", "each", "pace"}, perhaps with "removes" (`batches_of`). It makes the messages first
and prints "made"; at the next line it sends them and prints "sent".
"""

import json
import sys
import time
from collections.abc import Iterator, Sequence

import zmq

from warmpath.lab.bench.stand.made_up_fleet import batches_of


def main(count: int) -> None:
    """Bind `count` publishers and follow orders."""
    context = zmq.Context()
    sockets = []
    for _ in range(count):
        socket = context.socket(zmq.PUB)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind("tcp://127.0.0.1:*")
        sockets.append(socket)
    sequences = [0] * len(sockets)
    print(
        json.dumps([socket.getsockopt_string(zmq.LAST_ENDPOINT) for socket in sockets]), flush=True
    )
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
    sockets: Sequence["zmq.Socket[bytes]"], messages: list[tuple[int, bytes, bytes, int]], pace: int
) -> None:
    """Send all messages, at most `pace` blocks a second unless that is 0."""
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
    main(int(sys.argv[1]))
