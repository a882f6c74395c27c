"""Lying engines and publishers, and a broken pods-file; a router that follows them must go on."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from random import Random

import grpc.aio
import msgspec
import zmq
import zmq.asyncio

from tests.engine_sockets import http
from tests.soak.engines import BLOCK
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2 as pb

ABSURD = (-(1 << 63), -5, -1, 0, 1, 1 << 20, 1 << 31, 1 << 32, 1 << 62, (1 << 64) - 1)
MOST_STORED = 3000
"""Blocks that a lying engine stores before it publishes a restart, so that the index has room for all."""
HOST = "127.0.0.1"


class LyingEngine:
    """Publishes malformed batches, absurd figures, floods and restarts."""

    def __init__(self, rng: Random, context: zmq.asyncio.Context) -> None:
        self.rng = rng
        self._socket = context.socket(zmq.PUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(f"tcp://{HOST}:*")
        self.events = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._sequence = 0
        self._stored = 0
        self.acts: tuple[Callable[[], list[bytes]], ...] = (
            self.garbage, self.damaged, self.absurd, self.absurd, self.honest, self.honest, self.flood,
            self.nested, self.huge,
        )  # fmt: skip

    async def act(self) -> str:
        """Publish the batches of a random act; return the act's name."""
        act = self.rng.choice(self.acts)
        for payload in act():
            number = self._sequence.to_bytes(8, "big")
            self._sequence += self.rng.choice([1] * 20 + [2, 0, 1 << 40])
            frames = self.rng.choice(
                [(b"", number, payload)] * 9
                + [(payload,), (b"x" * 5000, number, payload), (b"", b"", payload)]  # type: ignore[list-item]
                + [(b"", number, payload, payload), (b"", number * 3, payload)]  # type: ignore[list-item]
            )
            await self._socket.send_multipart(frames)
        if self._stored > MOST_STORED or self._sequence > 1 << 50 or self.rng.random() < 0.02:
            self._sequence = self._stored = 0
            await self._publish_restart()
        return act.__name__

    async def _publish_restart(self) -> None:
        cleared = _batch({"type": "AllBlocksCleared"})
        await self._socket.send_multipart((b"", self._sequence.to_bytes(8, "big"), cleared))
        self._sequence += 1

    def _store(self, **more: object) -> dict[str, object]:
        blocks = self.rng.randrange(1, 6)
        self._stored += blocks
        return {
            "type": "BlockStored",
            "block_hashes": [self.rng.randrange(1 << 64) for _ in range(blocks)],
            "parent_block_hash": None,
            "token_ids": [self.rng.randrange(50_000) for _ in range(blocks * BLOCK)],
            "block_size": BLOCK, "lora_id": None, "medium": "GPU", "lora_name": None,
        } | more  # fmt: skip

    def honest(self) -> list[bytes]:
        return [_batch(self._store()) for _ in range(5)]

    def garbage(self) -> list[bytes]:
        return [self.rng.randbytes(self.rng.randrange(300)) for _ in range(5)]

    def damaged(self) -> list[bytes]:
        found = []
        for _ in range(5):
            raw = bytearray(_batch(self._store()))
            for _ in range(self.rng.choice([1, 4])):
                raw[self.rng.randrange(len(raw))] = self.rng.randrange(256)
            found.append(bytes(raw[: self.rng.randrange(1, len(raw) + 1)]))
        return found

    def absurd(self) -> list[bytes]:
        fields = (
            "block_size", "group_idx", "lora_id", "kv_cache_spec_sliding_window",
            "parent_block_hash", "token_ids", "block_hashes", "medium", "lora_name",
        )  # fmt: skip
        return [
            _batch(
                self._store(**{self.rng.choice(fields): self.rng.choice([*ABSURD, "x" * 9999])}),
                {"type": "BlockRemoved", "block_hashes": [self.rng.choice(ABSURD)], "medium": 5},
                {"type": "x" * 5000},
            )
            for _ in range(3)
        ]

    def flood(self) -> list[bytes]:
        return [_batch({"type": "BlockRemoved", "block_hashes": [7], "medium": "GPU"})] * 500

    def nested(self) -> list[bytes]:
        return [b"\x91" * 10_000, b"\x93\xcb" + bytes(8) + b"\x91" * 2000]

    def huge(self) -> list[bytes]:
        """Announce a list longer than the message, and send a large frame."""
        return [b"\x93\xcb" + bytes(8) + b"\xdd\xff\xff\xff\xff", bytes(1 << 20)]

    def close(self) -> None:
        self._socket.close()


def _batch(*events: dict[str, object]) -> bytes:
    return msgspec.msgpack.encode([1.0, list(events), 0])


async def lying_pages(rng: Random) -> asyncio.Server:
    async def page(_: str, writer: asyncio.StreamWriter) -> None:
        huge = b'vllm:cache_config_info{num_gpu_blocks="' + b"9" * 5000 + b'"} 1\n'
        what = rng.randrange(8)
        if what == 0:
            writer.write(
                b"HTTP/1.1 302 Found\r\nLocation: http://192.0.2.1/\r\nContent-Length: 0\r\n\r\n"
            )
        elif what == 1:
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            with contextlib.suppress(OSError):
                for _ in range(200):
                    if writer.is_closing():
                        break
                    writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
                    await asyncio.wait_for(writer.drain(), 2)
            writer.close()
        elif what == 2:
            await asyncio.sleep(2)
            writer.close()
        elif what == 3:
            body = huge + b"process_start_time_seconds 1e309\nvllm:num_requests_running nan\n" * 50
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        elif what == 4:
            body = json.dumps({"data": [{"id": "x" * 9000}] * 300, "version": "9" * 9000}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        elif what == 5:
            writer.write(b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000 + b"\r\n\r\n")
        elif what == 6:
            body = b"[" * 200_000 + b"]" * 200_000
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n\xff\xff")

    return await asyncio.start_server(http(page), HOST, 0)


class LyingPublisher(grpc.GenericRpcHandler):  # type: ignore[misc]  untyped there
    """Serves CacheWatch with messages that contradict each other and themselves."""

    def __init__(self, rng: Random, pod: str) -> None:
        self._rng = rng
        self._pod = pod

    def service(self, _: object) -> object:
        return grpc.unary_stream_rpc_method_handler(self._watch)

    async def _watch(self, _: bytes, __: object) -> AsyncIterator[bytes]:
        hello = pb.Hello(epoch=str(self._rng.random()), snapshot=True, pod=self._pod, ranks=1)
        sequence = self._rng.choice([1, 1 << 40])
        for message in (
            pb.WatchResponse(hello=hello),
            pb.WatchResponse(part=self._part()),
            pb.WatchResponse(
                end=pb.SnapshotEnd(sequence=sequence, ranks=[self._state(honest=True)])
            ),
        ):
            yield message.SerializeToString()
        for number in range(self._rng.randrange(20)):
            await asyncio.sleep(0.2)
            if self._rng.random() < 0.1:
                yield self._rng.randbytes(self._rng.randrange(100))
                continue
            change = pb.Change(added=self._keys()) if number % 2 else pb.Change(gone=self._keys())
            honest = self._rng.random() < 0.7
            delta = pb.Delta(
                sequence=sequence + number + 1, state=self._state(honest=honest), changes=[change]
            )
            raw = bytearray(pb.WatchResponse(delta=delta).SerializeToString())
            if self._rng.random() < 0.2:
                raw[self._rng.randrange(len(raw))] = self._rng.randrange(256)
            yield bytes(raw)

    def _part(self) -> pb.SnapshotPart:
        return pb.SnapshotPart(tier="gpu", keys=self._rng.randbytes(8 * self._rng.randrange(50)))

    def _keys(self) -> pb.Keys:
        odd = self._rng.random() < 0.3
        return pb.Keys(
            tier=self._rng.choice(["gpu", "cpu", "x" * 3000]) if odd else "gpu",
            group=self._rng.choice([0, 1, 2**32 - 1]) if odd else 0,
            keys=self._rng.randbytes(8 * self._rng.randrange(5) + odd),
            segments=[self._rng.randrange(2**64)] * 2, counts=[2**32 - 1] * odd,
        )  # fmt: skip

    def _state(self, *, honest: bool) -> pb.RankState:
        if honest:
            return pb.RankState(trust="exact", reason="x", groups=[pb.Group(block_size=BLOCK)])
        group = pb.Group(
            number=self._rng.choice([0, 2**32 - 1]), kind="sliding_window",
            block_size=self._rng.choice([0, 16, 2**32 - 1]), window=self._rng.choice([0, 2**32 - 1]),
        )  # fmt: skip
        return pb.RankState(
            rank=self._rng.choice([0, 0, 2**32 - 1]), trust=self._rng.choice(["exact", "sure"]),
            reason="r" * 100_000, groups=[group] * self._rng.choice([1, 500]),
            engine_sequence=2**64 - 1, copies=2**64 - 1, capacity=2**64 - 1,
        )  # fmt: skip


async def serve_lies(rng: Random, pod: str) -> tuple[grpc.aio.Server, str]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((LyingPublisher(rng, pod),))
    port = server.add_insecure_port(f"{HOST}:0")
    await server.start()
    return server, f"{HOST}:{port}"


class RewrittenFile:
    """A pods-file that is rewritten again and again: first broken, then valid."""

    def __init__(self, rng: Random, path: Path, good: str) -> None:
        self._rng = rng
        self._path = path
        self._good = good
        path.write_text(good)

    async def act(self) -> str:
        """Write a broken file, and after 1.5 s the valid one."""
        broken: tuple[bytes, ...] = (
            b"", self._rng.randbytes(500), b"[[pods]]\n" * 3, b'pods = "x"', b"x" * (17 << 20),
            self._good.encode()[: self._rng.randrange(len(self._good))],
            self._good.encode() + b'\n[[pods]]\nid = "' + b"y" * 9000 + b'"\nmodel = "m"\naddress = "a:1"\n',
        )  # fmt: skip
        self._path.write_bytes(self._rng.choice(broken))
        await asyncio.sleep(1.5)
        self._path.write_text(self._good)
        await asyncio.sleep(1.5)
        return "pods-file"


async def again(
    act: Callable[[], Awaitable[str]],
    pause: float,
    done: Callable[[str], None],
    going_on: Callable[[], bool],
) -> None:
    """Act until the soak is over. It is not cancelled: an act might swallow the cancellation."""
    while going_on():
        done(await act())
        await asyncio.sleep(pause)
