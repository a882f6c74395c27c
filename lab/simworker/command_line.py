"""The command line: every option, with its limits and its default."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from warmpath.lab.simworker.build_engine import ENGINES, read_model_shape
from warmpath.lab.simworker.events.faulty_outlet import MOST_DELAY_SECONDS
from warmpath.lab.simworker.presets import DEFAULT_PRESET, PRESETS
from warmpath.lab.simworker.server.metrics import NAMES
from warmpath.lab.simworker.trtllm.blocks.retention import (
    DEFAULT_PRIORITY,
    KvCacheRetentionConfig,
    TokenRangeRetentionConfig,
)
from warmpath.lab.simworker.v1.assemble import KVGroup
from warmpath.lab.simworker.v1.hashing.block_hash import DEFAULT_NONE_HASH_SEED

INT32 = (1 << 31) - 1


def whole(low: int, high: int = INT32) -> Callable[[str], int]:
    """Return a reader of whole numbers within limits."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < low:
            raise argparse.ArgumentTypeError(f"at least {low}, not {value}")
        if value > high:
            raise argparse.ArgumentTypeError(f"at most {high}, not {value}")
        return value

    return read


def number(high: float, *, above: bool = False) -> Callable[[str], float]:
    """Return a reader of numbers from 0, or from above 0, to a limit."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
        if above and not value > 0:
            raise argparse.ArgumentTypeError(f"above 0, not {text}")
        if not 0 <= value <= high:
            raise argparse.ArgumentTypeError(f"from 0 to {high:g}, not {text}")
        return value

    return read


def address(text: str) -> tuple[str, int]:
    """Read `host:port`; return (host, port)."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not host:port")
    return host.strip("[]"), int(port)


def lora_module(text: str) -> tuple[str, str]:
    """Read `name=path`, or vLLM's JSON form; return (name, path)."""
    if text.startswith("{"):
        try:
            module = json.loads(text)
            return str(module["name"]), str(module["path"])
        except (ValueError, KeyError):
            raise argparse.ArgumentTypeError(f"{text!r} has no name and path") from None
    name, found, path = text.partition("=")
    if not found or not name or not path:
        raise argparse.ArgumentTypeError(f"{text!r} is not name=path")
    return name, path


LACKS = ("metrics", "tokenize", "tokenize-chats")
MOST_WORKERS = 1024
MOST_RANKS = 1024
MOST_BLOCKS = 1 << 28
MOST_SECONDS = 30 * 86400.0
MOST_GIB = 4096.0
EVENTS_PORT = 5557
MODEL_LEN = 131_072


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line each: argparse's usage of 50 lines would hide the error."""

    def error(self, message: str) -> NoReturn:
        """End the process with status 2, the error and where help is."""
        self.exit(2, f"{self.prog}: {message}; '{self.prog} --help' shows the options\n")


class _Help(argparse.HelpFormatter):
    """Shows defaults, except empty ones, and keeps the lines of examples, as other commands do."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        given = action.default
        silent = given is None or given is False or given in ("", argparse.SUPPRESS) or given == []
        if silent or "default" in (action.help or ""):
            return action.help
        said = "yes" if given is True else "%(default)s"
        return f"{action.help}; {said} by default"

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n  " in text else super()._fill_text(text, width, indent)


def command_parser() -> argparse.ArgumentParser:
    """Return the parser; what it parses has an attribute for each option."""
    parser = _Parser(
        prog="warmpath simworker",
        description="Serve simulated workers until SIGTERM or Ctrl-C.",
        formatter_class=_Help,
        allow_abbrev=False,
        epilog="example:\n  warmpath simworker --model demo --listen 127.0.0.1:8101",
    )
    _serving(parser.add_argument_group("serving").add_argument)
    _engine(parser.add_argument_group("engine").add_argument)
    _events(parser.add_argument_group("events").add_argument)
    _faults(
        parser.add_argument_group(
            "faults", "Faults of the worker and its live events. A replay has none."
        ).add_argument
    )
    return parser


Add = Callable[..., Any]


def _serving(add: Add) -> None:
    add("--model", default="sim", help="served model name")
    add("--listen", type=address, default="127.0.0.1:8100",
        help="host:port of HTTP; port 0 takes a free one")  # fmt: skip
    add("--workers", type=whole(1, MOST_WORKERS), default=1,
        help="workers in this process; each has the next ports")  # fmt: skip
    add("--data-parallel-size", type=whole(1, MOST_RANKS), default=1,
        help="ranks of each worker, each with an engine and ports of events of its own")  # fmt: skip
    add("--tokenizer", type=Path, help="folder of a tokenizer, for text and chats")
    add("--adapter", action="append", default=[], metavar="NAME",
        help="a LoRA adapter whose path is its name; may be repeated")  # fmt: skip
    add("--lora-modules", type=lora_module, nargs="+", action="extend", default=[],
        metavar="NAME=PATH", help="LoRA adapters")  # fmt: skip
    add("--stream-interval", type=whole(1), default=1, help="tokens a chunk of a streamed answer")
    add(
        "--metrics",
        choices=sorted(NAMES),
        help="the engine whose names /metrics uses; by default the simulated one",
    )
    add("--api-key", default="",
        help="the key that requests must carry, those of /health and /metrics aside")  # fmt: skip
    add("--without", action="append", default=[], choices=LACKS,
        help="serve no such page, or make no tokens of chats; may be repeated")  # fmt: skip
    add("--drain-seconds", type=number(MOST_SECONDS), default=0.0,
        help="seconds after SIGTERM for requests under way to end")  # fmt: skip


def _engine(add: Add) -> None:
    add("--engine", choices=sorted(ENGINES), default="vllm-v1", help="the engine to simulate")
    add("--blocks", type=whole(2, MOST_BLOCKS), default=4096,
        help="KV cache blocks, the null block counted")  # fmt: skip
    add("--block-size", type=whole(1), default=16, help="tokens a block")
    add("--gpu-memory", type=number(MOST_GIB, above=True), metavar="GIB",
        help="vLLM v1: GiB of a rank's device, which with --model-config give the blocks and the groups "
        "instead of --blocks, as vLLM plans them")  # fmt: skip
    add("--model-config", type=read_model_shape, metavar="FILE",
        help="the model's config.json, for --gpu-memory")  # fmt: skip
    add("--weights-memory", type=number(MOST_GIB), default=0.0, metavar="GIB",
        help="GiB of --gpu-memory for weights and a step's other needs")  # fmt: skip
    add(
        "--kv-groups",
        type=_kv_groups,
        metavar="GROUPS",
        help="groups of layers instead of --block-size: full:16,window:16:1024 are layers that keep all "
        "tokens and layers that keep the last 1024; vLLM v1's share the blocks, TensorRT-LLM's have "
        "--blocks each",
    )
    add(
        "--kv-cache-retention",
        type=_retention,
        metavar="WISHES",
        help="TensorRT-LLM: a request's KvCacheRetentionConfig; of 0-1024:80:30000,1024-:20,decode:10 "
        "blocks that begin within tokens 0 to 1023 have priority 80 (of 0 to 100; 35 without a wish) "
        "until they were free for 30000 ms, later ones 20, and those of the answer 10",
    )
    add("--eagle", action="store_true",
        help="a drafter reads vLLM v1's cache: the last block of a hit is computed again")  # fmt: skip
    add(
        "--cpu-blocks",
        type=whole(0, MOST_BLOCKS),
        default=0,
        help="blocks in host memory: vLLM offloads to them; TensorRT-LLM's second pool",
    )
    add("--bytes-per-token", type=whole(1), default=81_920,
        help="bytes of a token's KV cache on a rank, which copies to host memory move")  # fmt: skip
    add("--enable-prefix-caching", action=argparse.BooleanOptionalAction, default=True,
        help="reuse cached blocks for prompts that begin with the same tokens")  # fmt: skip
    add("--enable-chunked-prefill", action=argparse.BooleanOptionalAction, default=True,
        help="compute a prompt over several steps where it does not fit into one")  # fmt: skip
    add("--max-num-seqs", type=whole(1), default=256, help="requests running at once")
    add("--max-num-batched-tokens", type=whole(1), default=8192, help="tokens a step")
    add("--max-model-len", type=whole(2),
        help=f"tokens of prompt and answer; by default {MODEL_LEN}, or less if less fits")  # fmt: skip
    add("--vocab-size", type=whole(1), default=32000, help="token ids are below this number")
    add("--scheduling-policy", choices=_all("scheduling_policies"), default="fcfs",
        help="the order of waiting requests")  # fmt: skip
    add("--prefix-caching-hash-algo", choices=_all("hash_algos"),
        help="the hash of blocks; by default the engine's own default")  # fmt: skip
    add(
        "--hash-seed",
        default=DEFAULT_NONE_HASH_SEED,
        help="seed of the block hashes, as PYTHONHASHSEED is for vLLM",
    )
    add("--preset", choices=sorted(PRESETS), default=DEFAULT_PRESET,
        help="the GPU and model that set how long a step takes")  # fmt: skip
    add("--speed", type=number(1e9, above=True), default=1.0,
        help="how many times faster than modelled the steps are")  # fmt: skip


def _all(attribute: str) -> list[str]:
    return sorted({value for kind in ENGINES.values() for value in getattr(kind, attribute)})


def _events(add: Add) -> None:
    add("--events-endpoint", default=f"tcp://127.0.0.1:{EVENTS_PORT}",
        help="PUB socket, bound; each rank has the next port, * takes free ones")  # fmt: skip
    add("--replay-endpoint",
        help=f"ROUTER socket, likewise; by default after all ports from {EVENTS_PORT} on")  # fmt: skip
    add("--topic", default="", help="topic of the events; {worker} stands for the worker's number")
    add("--dialect", default="vllm",
        help="engine and version of the events' form, as vllm-0.23 or sglang-0.5.16")  # fmt: skip
    add("--byte-hashes", action="store_true",
        help="hashes as whole digests, as with VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0")  # fmt: skip
    add("--buffer-steps", type=whole(1), default=10000, help="batches kept for replay")


def _faults(add: Add) -> None:
    rate = number(1)
    seconds = number(MOST_SECONDS)
    add("--allow-faults", action="store_true", help="serve /faults, which switches all of these")
    add("--fault-drop", type=rate, default=0.0, help="share of live batches never sent")
    add("--fault-duplicate", type=rate, default=0.0, help="share sent twice")
    add("--fault-delay", type=rate, default=0.0, help="share that stalls the stream")
    add("--fault-reorder", type=rate, default=0.0, help="share sent after the next one")
    add("--fault-delay-seconds", type=number(MOST_DELAY_SECONDS), default=0.2, help="the delay")
    add("--fault-seed", type=whole(0), default=0, help="seed of the choice of batches")
    add("--fault-slow", type=number(1e6, above=True), default=1.0,
        help="how many times longer steps take")  # fmt: skip
    add("--fault-crash-after", type=seconds, help="seconds until the process ends at once")
    add("--fault-hang-after", type=seconds, help="seconds until no step ends any more")
    add("--fault-restart-after", type=seconds, help="seconds until a new life begins")


def _kv_groups(text: str) -> tuple[KVGroup, ...]:
    """Read `full:BLOCK_SIZE` and `window:BLOCK_SIZE:TOKENS`, with commas between them."""
    groups = []
    for one in text.split(","):
        kind, *figures = one.split(":")
        if (kind, len(figures)) not in (("full", 1), ("window", 2)):
            raise argparse.ArgumentTypeError(
                f"{one!r} is neither full:BLOCK_SIZE nor window:BLOCK_SIZE:TOKENS"
            )
        groups.append(KVGroup(*map(whole(1), figures)))
    return tuple(groups)


def _retention(text: str) -> KvCacheRetentionConfig:
    """Read `START-END:PRIORITY`, `START-:PRIORITY` and `decode:PRIORITY`, with commas between them.

    Each may end with `:MS`, the milliseconds for which it holds.
    """
    ranges, decoding = [], None
    for one in text.split(","):
        tokens, *figures = one.split(":")
        start, dash, end = tokens.partition("-")
        if len(figures) not in (1, 2) or not (dash or tokens == "decode"):
            raise argparse.ArgumentTypeError(
                f"{one!r} is neither START-END:PRIORITY nor decode:PRIORITY, and perhaps :MILLISECONDS"
            )
        priority, *duration = map(whole(0), figures)
        duration_ms = duration[0] if duration else None
        if dash:
            stop = whole(1)(end) if end else None
            ranges.append(TokenRangeRetentionConfig(whole(0)(start), stop, priority, duration_ms))
        elif decoding is not None:
            raise argparse.ArgumentTypeError("decode is given twice")
        else:
            decoding = priority, duration_ms
    try:
        return KvCacheRetentionConfig(ranges, *(decoding or (DEFAULT_PRIORITY, None)))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
