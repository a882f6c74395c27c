"""`warmpath simworker`: a vLLM worker without a GPU."""

import argparse
import asyncio
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import zmq
from aiohttp import web
from prometheus_client import CollectorRegistry

from simworker.emit import encode_batch
from simworker.metrics import EngineCollector
from simworker.publish import Publisher
from simworker.serve import Identity, WorkerServer
from simworker.shell import EngineShell
from simworker.text import FolderText, NoText
from simworker.v1.assemble import build_engine, kv_cache_config
from simworker.v1.block_hash import DEFAULT_NONE_HASH_SEED
from simworker.v1.scheduler_config import SchedulerConfig


def main(argv: Sequence[str] | None = None) -> int:
    """Serve a simulated vLLM worker until SIGTERM or Ctrl-C."""
    parser = _parser()
    args = parser.parse_args(argv)
    for option, low in (
        ("blocks", 2), ("block_size", 1), ("max_num_seqs", 1), ("max_num_batched_tokens", 1),
        ("max_model_len", 2), ("vocab_size", 1), ("buffer_steps", 1), ("stream_interval", 1),
    ):  # fmt: skip
        if getattr(args, option) < low:
            parser.error(f"--{option.replace('_', '-')}: at least {low}")
    if not args.speed > 0:
        parser.error("--speed: above 0")
    host, _, port = args.listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        parser.error(f"--listen: {args.listen!r} is not host:port")
    try:
        asyncio.run(_serve(args, host, int(port)))
    except (OSError, ValueError, zmq.ZMQError) as error:
        print(f"warmpath simworker: {error}", file=sys.stderr)  # noqa: T201  the command line
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="warmpath simworker",
        description=main.__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--model", default="sim", help="served model name")
    add("--listen", default="127.0.0.1:8100", help="host:port of HTTP; port 0 takes a free one")
    add("--events-endpoint", default="tcp://127.0.0.1:5557", help="PUB socket, bound")
    add("--replay-endpoint", default="tcp://127.0.0.1:5558", help="ROUTER socket, bound")
    add("--topic", default="", help="topic of the events")
    add("--blocks", type=int, default=4096, help="KV cache blocks, the null block counted")
    add("--block-size", type=int, default=16, help="tokens a block")
    add("--max-num-seqs", type=int, default=256, help="requests running at once")
    add("--max-num-batched-tokens", type=int, default=8192, help="tokens a step")
    add("--max-model-len", type=int, default=131072, help="prompt and answer, tokens")
    add("--vocab-size", type=int, default=32000, help="token ids lie below it")
    add("--speed", type=float, default=1.0, help="how many times faster than modelled")
    add("--tokenizer", type=Path, help="folder of a tokenizer, for text and chats")
    add("--adapter", action="append", default=[], help="a LoRA adapter's name; may be repeated")
    add("--buffer-steps", type=int, default=10000, help="batches kept for replay")
    add("--stream-interval", type=int, default=1, help="tokens a chunk of a streamed answer")
    add(
        "--hash-seed",
        default=DEFAULT_NONE_HASH_SEED,
        help="seeds the block hashes, as PYTHONHASHSEED",
    )
    return parser


async def _serve(args: argparse.Namespace, host: str, port: int) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, ended.set)
    text = FolderText(args.tokenizer) if args.tokenizer else NoText()
    vocab_size = text.vocab_size if isinstance(text, FolderText) else args.vocab_size
    engine = build_engine(
        kv_cache_config(args.blocks, args.block_size),
        SchedulerConfig(
            max_model_len=args.max_model_len,
            max_num_seqs=args.max_num_seqs,
            max_num_batched_tokens=args.max_num_batched_tokens,
        ),
        vocab_size=vocab_size,
        hash_algorithm="sha256_cbor",
        hash_seed=args.hash_seed,
    )
    publisher = Publisher(args.events_endpoint, args.replay_endpoint, args.topic, args.buffer_steps)
    shell = EngineShell(
        engine,
        lambda events: publisher.publish(encode_batch(time.time(), events, 0)),
        speed=args.speed,
        clock=time.monotonic,
        sleep=asyncio.sleep,
    )
    registry = CollectorRegistry()
    registry.register(EngineCollector(shell, args.model))
    identity = Identity(
        args.model, frozenset(args.adapter), vocab_size, args.max_model_len, args.stream_interval
    )
    server = WorkerServer(shell, text, identity, registry)
    runner = web.AppRunner(server.app(), access_log=None, shutdown_timeout=0.2)
    tasks = [asyncio.create_task(shell.run()), asyncio.create_task(publisher.serve_replay())]
    try:
        await runner.setup()
        await web.TCPSite(runner, host.strip("[]"), port).start()
        ready = {
            "ready": True,
            "address": f"{host}:{runner.addresses[0][1]}",
            "events": publisher.endpoint,
            "replay": publisher.replay_endpoint,
        }
        print(json.dumps(ready), flush=True)  # noqa: T201  what starters wait for
        stopped = asyncio.create_task(ended.wait())
        # A task that fails ends the worker: half an engine would look like a whole one.
        await asyncio.wait((stopped, *tasks), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await runner.cleanup()
        publisher.close()


if __name__ == "__main__":
    sys.exit(main())
