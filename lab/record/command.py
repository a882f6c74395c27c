"""Record a running engine, for `warmpath verify`.

It is a proxy in front of the engine and also listens to its events: requests, answers and events go into
one file of JSON lines. The file holds prompts and answers, so only its owner may read it.

To record an answer's tokens it asks the engine for token ids and for a stream's usage, and passes the
answer on unchanged: clients see these fields, and a stream's last chunk without choices.
"""

import argparse
import asyncio
import contextlib
import gzip
import json
import os
import signal
import sys
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import zmq
import zmq.asyncio
from aiohttp import web

from warmpath.indexer.follow.dial import END, Tap
from warmpath.indexer.follow.endpoint import endpoint_problem
from warmpath.lab.record.exchange import RecordedExchange
from warmpath.process.address import HostPort, is_host_port
from warmpath.process.command_line import command_parser, in_words
from warmpath.router.load.engine_metrics import cache_blocks

GENERATING = ("/v1/completions", "/v1/chat/completions")
START_SECONDS = 10.0
"""Longest wait for the engine's event sockets to connect, and for each replayed batch."""

HOP_HEADERS = frozenset(
    {"accept-encoding", "connection", "content-length", "host", "keep-alive", "transfer-encoding"}
)
"""Headers of a single connection, which a proxy does not pass on, and those that ask for compression."""


class RecordingFile:
    """Writes lines, each stamped with the seconds since the start."""

    def __init__(self, path: Path) -> None:
        """Create the file. Raises OSError, also if the file exists."""
        raw = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._raw = os.fdopen(raw, "wb")
        self._lines = gzip.GzipFile(fileobj=self._raw, mode="wb", mtime=0)
        self._begun = time.monotonic()
        self.counts = {"request": 0, "events": 0}

    def now(self) -> float:
        return round(time.monotonic() - self._begun, 4)

    def add(self, kind: str, **fields: Any) -> None:
        line = {"kind": kind, "t": self.now(), **fields}
        self._lines.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        if kind in self.counts:
            self.counts[kind] += 1

    def flush(self) -> None:
        """Write the buffered lines, so that a crash loses only later ones."""
        self._lines.flush()
        self._raw.flush()

    def close(self) -> None:
        self._lines.close()
        self._raw.close()


class Proxy:
    """Passes requests on to the engine and records those that generate."""

    def __init__(self, target: str, file: RecordingFile, session: aiohttp.ClientSession) -> None:
        self._target = target.rstrip("/")
        self._file = file
        self._session = session
        self._number = 0

    def app(self) -> web.Application:
        """Return the application; it passes requests to every path on."""
        app = web.Application(client_max_size=256 << 20)
        app.router.add_route("*", "/{path:.*}", self.handle)
        return app

    async def handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        exchange = None
        if request.method == "POST" and request.path in GENERATING:
            self._number += 1
            exchange = RecordedExchange(self._number, request.path, raw, self._file.now())
            raw = exchange.sent
        headers = {
            name: value
            for name, value in request.headers.items()
            if name.lower() not in HOP_HEADERS
        }
        try:
            async with self._session.request(
                request.method, self._target + request.path_qs, data=raw, headers=headers
            ) as answer:
                return await self._pass_back(request, answer, exchange)
        except aiohttp.ClientError as error:
            if exchange is not None:
                self._file.add("request", **exchange.line(502, str(error).encode()))
            return web.json_response(
                {"error": {"message": f"the engine: {in_words(error)}"}}, status=502
            )

    async def _pass_back(
        self,
        request: web.Request,
        answer: aiohttp.ClientResponse,
        exchange: RecordedExchange | None,
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status)
        response.content_type = answer.content_type
        await response.prepare(request)
        whole = bytearray()
        try:
            async for chunk in answer.content.iter_any():
                whole += chunk
                await response.write(chunk)
            await response.write_eof()
        except ConnectionResetError:
            # The client has closed the connection; returning closes the one to the engine too.
            if exchange is not None:
                self._file.add("aborted", phase="recorded", body=exchange.body)
            return response
        except aiohttp.ClientError as error:
            # The client has part of the answer: only a cut connection says that more is missing.
            if exchange is not None:
                self._file.add("request", **exchange.line(502, str(error).encode()))
            if request.transport is not None:
                request.transport.abort()
            return response
        if exchange is not None:
            self._file.add("request", **exchange.line(answer.status, bytes(whole)))
            self._file.flush()
        elif request.path == "/reset_prefix_cache":
            with contextlib.suppress(ValueError):
                outcome = json.loads(bytes(whole) or b"null")
                self._file.add("admin", path=request.path, status=answer.status, response=outcome)
        return response


def main(argv: Sequence[str] | None = None) -> int:
    """Record a running engine's requests and events into a file, until Ctrl-C."""
    args = _parser().parse_args(argv)
    # Clients need a host to send requests to.
    if args.listen[:1] == ":" or not is_host_port(args.listen):
        print(f"warmpath record: --listen: {args.listen!r} is not host:port", file=sys.stderr)
        return 2
    if urlsplit(args.target).scheme not in ("http", "https"):
        print(f"warmpath record: --target: {args.target!r} is not http(s)://…", file=sys.stderr)
        return 2
    for option in ("events", "replay"):
        endpoint = getattr(args, option)
        if endpoint and (problem := endpoint_problem(endpoint)):
            print(f"warmpath record: --{option}: {problem}", file=sys.stderr)
            return 2
    try:
        file = RecordingFile(args.out)
    except OSError as error:
        print(f"warmpath record: --out: {in_words(error)}", file=sys.stderr)
        return 2
    try:
        failure = asyncio.run(_record(args, file))
    except (OSError, zmq.ZMQError) as error:
        file.close()
        # The file has only the heading and replayed batches: no request has come yet.
        args.out.unlink()
        print(f"warmpath record: {in_words(error)}", file=sys.stderr)
        return 1
    file.close()
    counts = file.counts
    print(f"{args.out}: {counts['request']} requests, {counts['events']} batches of events")
    if failure is not None:
        print(f"warmpath record: ended by an error: {failure}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "record",
        __doc__,
        "warmpath record --target http://127.0.0.1:8101 --events tcp://127.0.0.1:5557"
        " --out one.jsonl.gz",
    )
    add = parser.add_argument
    add("--target", required=True, help="the engine, http://host:port")
    add("--events", required=True, help="its event endpoint, tcp://host:port")
    add("--replay", default="", help="its replay endpoint; what it had before is then known too")
    add("--topic", default="", help="the topic of its events; all by default")
    add("--listen", default="127.0.0.1:8199", help="host:port where clients are to send requests")
    add("--out", type=Path, required=True, help="the file to write, .jsonl.gz; it must not exist")
    return parser


async def _record(args: argparse.Namespace, file: RecordingFile) -> Exception | None:
    """Record until a signal comes; return the error that ended it before, None without."""
    at = HostPort.of(args.listen)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, ended.set)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as session:
        file.add("trace", source="warmpath record", **await _engine(args.target, session))
        runner = web.AppRunner(Proxy(args.target, file, session).app(), access_log=None)
        context = zmq.asyncio.Context()
        tap = Tap(context, args.topic)
        try:
            if not await _ready(_catch_up(args, tap, file), ended):
                return None
            listening = asyncio.create_task(_listen(tap, file))
            await runner.setup()
            try:
                await web.TCPSite(runner, *at).start()
            except OSError as error:
                raise OSError(f"--listen: {in_words(error)}") from error
            print(
                f"recording: send requests to http://{at._replace(port=runner.addresses[0][1])}, "
                "end with Ctrl-C",
                flush=True,
            )
            stopped = asyncio.create_task(ended.wait())
            await asyncio.wait((stopped, listening), return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            listening.cancel()
            (end,) = await asyncio.gather(listening, return_exceptions=True)
            return end if isinstance(end, Exception) else None
        finally:
            await runner.cleanup()
            tap.close()
            context.term()


async def _ready(work: Coroutine[Any, Any, None], ended: asyncio.Event) -> bool:
    """Wait for `work` or `ended`, whichever is first; return whether the work finished."""
    working = asyncio.create_task(work)
    stopped = asyncio.create_task(ended.wait())
    await asyncio.wait((working, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if working.done():
        working.result()
        return True
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    return False


async def _catch_up(args: argparse.Namespace, tap: Tap, file: RecordingFile) -> None:
    """Connect, and record the batches published before. Raises OSError if the engine is silent."""
    try:
        async with asyncio.timeout(START_SECONDS):
            await tap.connected(args.events)
    except TimeoutError as error:
        problem = f"--events: nobody publishes at {args.events} ({START_SECONDS:g} s)"
        raise OSError(problem) from error
    except OSError as error:
        raise OSError(f"--events: {args.events}: {in_words(error)}") from error
    if not args.replay:
        return
    try:
        async with asyncio.timeout(START_SECONDS) as patience:
            async for topic, sequence, payload in tap.replayed(args.replay, bytes(8)):
                _add_frame(file, "replayed", topic, sequence, payload)
                patience.reschedule(asyncio.get_running_loop().time() + START_SECONDS)
    except TimeoutError as error:
        problem = f"--replay: no answer from {args.replay} ({START_SECONDS:g} s)"
        raise OSError(problem) from error
    except OSError as error:
        raise OSError(f"--replay: {args.replay}: {in_words(error)}") from error
    file.add("replay_end", start_seq=0)


async def _engine(target: str, session: aiohttp.ClientSession) -> dict[str, Any]:
    """Ask the engine for its models and its cache's size. Raises OSError if it does not list models."""
    try:
        async with session.get(f"{target.rstrip('/')}/v1/models") as response:
            models = json.loads(await response.read())["data"]
        adapters = [str(model["id"]) for model in models if model.get("parent")]
        bases = [str(model["id"]) for model in models if not model.get("parent")]
    except (aiohttp.ClientError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise OSError(f"--target: {target} does not list its models: {in_words(error)}") from error
    said = {"model": bases[0] if bases else "", "adapters": adapters}
    with contextlib.suppress(aiohttp.ClientError):
        async with session.get(f"{target.rstrip('/')}/metrics") as response:
            if blocks := cache_blocks(await response.read()):
                # With the null block, as in vLLM's own figure.
                return {**said, "num_gpu_blocks": blocks + 1}
    return said


async def _listen(tap: Tap, file: RecordingFile) -> None:
    async for topic, sequence, payload in tap.live():
        _add_frame(file, "events", topic, sequence, payload)


def _add_frame(
    file: RecordingFile, kind: str, topic: bytes, sequence: bytes, payload: bytes
) -> None:
    assert sequence != END
    file.add(
        kind,
        topic=topic.decode("utf-8", "replace"),
        seq=int.from_bytes(sequence, "big"),
        payload_hex=payload.hex(),
    )
