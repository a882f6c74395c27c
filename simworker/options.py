"""The command line: every option with its limits, read into `Settings`."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from simworker.build_engine import ENGINES, EngineSettings
from simworker.events.dialect import UnknownDialectError, dialect_named
from simworker.events.faulty_outlet import MOST_DELAY_SECONDS, EventFaults
from simworker.events.publisher import EndpointError, rank_endpoint
from simworker.option_types import address, lora_module, number, whole
from simworker.presets import DEFAULT_PRESET, PRESETS
from simworker.server.adapters import AdapterError, Adapters
from simworker.server.metrics import NAMES
from simworker.v1.hashing.block_hash import DEFAULT_NONE_HASH_SEED

MOST_WORKERS = 1024
MOST_RANKS = 1024
MOST_BLOCKS = 1 << 28
MOST_SECONDS = 30 * 86400.0
EVENTS_PORT = 5557
MODEL_LEN = 131_072


@dataclass(frozen=True, slots=True)
class FaultSettings:
    """Faults from the start, and faults after a time: seconds since the worker is ready."""

    allowed: bool
    """Whether /faults is served."""
    events: EventFaults
    slow: float
    crash_after: float | None
    hang_after: float | None
    restart_after: float | None


@dataclass(frozen=True, slots=True)
class Settings:
    """All of a process's settings."""

    model: str
    host: str
    port: int
    events_endpoint: str
    replay_endpoint: str
    topic: str
    """May hold `{worker}`, the worker's number in the process."""
    buffer_steps: int
    dialect: str
    byte_hashes: bool
    metrics: str
    workers: int
    ranks: int
    engine: EngineSettings
    speed: float
    tokenizer: Path | None
    lora_modules: tuple[tuple[str, str], ...]
    """(name, path) of each adapter."""
    stream_interval: int
    drain_seconds: float
    faults: FaultSettings


def parse(argv: Sequence[str] | None) -> Settings:
    """Return the settings of a command line; a wrong one ends the process with status 2."""
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        settings = _settings(args)
        _check(settings)
    except (EndpointError, UnknownDialectError, AdapterError, argparse.ArgumentTypeError) as error:
        parser.error(str(error))
    return settings


def _settings(args: argparse.Namespace) -> Settings:
    kind = ENGINES[args.engine]
    algo = args.prefix_caching_hash_algo or kind.hash_algos[0]
    if algo not in kind.hash_algos:
        raise argparse.ArgumentTypeError(
            f"--prefix-caching-hash-algo: {args.engine} has {', '.join(kind.hash_algos)}"
        )
    if args.scheduling_policy not in kind.scheduling_policies:
        raise argparse.ArgumentTypeError(
            f"--scheduling-policy: {args.engine} has {', '.join(kind.scheduling_policies)}"
        )
    dialect = dialect_named(args.dialect, byte_hashes=args.byte_hashes)
    engine = EngineSettings(
        engine=args.engine,
        blocks=args.blocks,
        cpu_blocks=args.cpu_blocks,
        # SGLang has no form for pages without tokens.
        describes_offloads=dialect.engine == "sglang",
        bytes_per_block=args.bytes_per_token * args.block_size,
        enable_prefix_caching=args.enable_prefix_caching,
        enable_chunked_prefill=args.enable_chunked_prefill,
        block_size=args.block_size,
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        max_model_len=args.max_model_len or _fitting_model_len(args.blocks, args.block_size),
        vocab_size=args.vocab_size,
        hash_algo=algo,
        hash_seed=args.hash_seed,
        scheduling_policy=args.scheduling_policy,
        preset=args.preset,
    )
    faults = FaultSettings(
        allowed=args.allow_faults,
        events=EventFaults(
            drop=args.fault_drop,
            duplicate=args.fault_duplicate,
            delay=args.fault_delay,
            reorder=args.fault_reorder,
            delay_seconds=args.fault_delay_seconds,
            seed=args.fault_seed,
        ),
        slow=args.fault_slow,
        crash_after=args.fault_crash_after,
        hang_after=args.fault_hang_after,
        restart_after=args.fault_restart_after,
    )
    sockets = args.workers * args.data_parallel_size
    return Settings(
        model=args.model,
        host=args.listen[0],
        port=args.listen[1],
        events_endpoint=args.events_endpoint,
        replay_endpoint=args.replay_endpoint or f"tcp://127.0.0.1:{EVENTS_PORT + sockets}",
        topic=args.topic,
        buffer_steps=args.buffer_steps,
        dialect=args.dialect,
        byte_hashes=args.byte_hashes,
        metrics=args.metrics or kind.metrics or dialect.engine,
        workers=args.workers,
        ranks=args.data_parallel_size,
        engine=engine,
        speed=args.speed,
        tokenizer=args.tokenizer,
        lora_modules=(*((name, name) for name in args.adapter), *args.lora_modules),
        stream_interval=args.stream_interval,
        drain_seconds=args.drain_seconds,
        faults=faults,
    )


def _fitting_model_len(blocks: int, block_size: int) -> int:
    """Return the tokens of the longest request that fits into the cache, at most `MODEL_LEN`.

    vLLM v1 keeps one block, the null block, and does not start with a longer limit; v0 keeps a hundredth
    of the blocks free.
    """
    return min(MODEL_LEN, (blocks - max(1, blocks // 100)) * block_size)


def _check(settings: Settings) -> None:
    """Raise if settings contradict each other."""
    engine = settings.engine
    # Other engines start all the same, and refuse requests that do not fit.
    most = (engine.blocks - 1) * engine.block_size
    if engine.engine == "vllm-v1" and engine.max_model_len > most:
        raise argparse.ArgumentTypeError(
            f"--max-model-len: {engine.max_model_len} tokens do not fit into {engine.blocks - 1} blocks "
            f"of {engine.block_size}; at most {most}, or more --blocks"
        )
    sockets = settings.workers * settings.ranks
    ports = []
    for option, endpoint in (
        ("--events-endpoint", settings.events_endpoint),
        ("--replay-endpoint", settings.replay_endpoint),
    ):
        try:
            rank_endpoint(endpoint, sockets - 1)
        except EndpointError as error:
            raise EndpointError(f"{option}: {error}") from error
        port = endpoint.rpartition(":")[2]
        ports.append(int(port) if port.isdecimal() else 0)
    if 0 not in ports and abs(ports[0] - ports[1]) < sockets:
        raise EndpointError(
            f"--replay-endpoint: {sockets} ports from {ports[1]} on and as many of "
            f"--events-endpoint from {ports[0]} on overlap; put them {sockets} or more apart"
        )
    if settings.port and settings.port + settings.workers - 1 > 65535:
        raise EndpointError(
            f"--listen: {settings.workers} ports from {settings.port} on would go beyond 65535"
        )
    adapters = Adapters(settings.model)
    for name, path in settings.lora_modules:
        try:
            adapters.load(name, path)
        except AdapterError as error:
            raise AdapterError(f"--lora-modules: {error}") from error


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line: a usage of 50 lines would hide it."""

    def error(self, message: str) -> NoReturn:
        """End the process with status 2, the error and where help is."""
        self.exit(2, f"{self.prog}: {message}; '{self.prog} --help' shows the options\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="warmpath simworker",
        description="Serve simulated workers until SIGTERM or Ctrl-C.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
        epilog="example: warmpath simworker --model demo --listen 127.0.0.1:8101",
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
    add("--drain-seconds", type=number(MOST_SECONDS), default=0.0,
        help="seconds after SIGTERM for requests under way to end")  # fmt: skip


def _engine(add: Add) -> None:
    add("--engine", choices=sorted(ENGINES), default="vllm-v1", help="the engine to simulate")
    add("--blocks", type=whole(2, MOST_BLOCKS), default=4096,
        help="KV cache blocks, the null block counted")  # fmt: skip
    add("--block-size", type=whole(1), default=16, help="tokens a block")
    add(
        "--cpu-blocks",
        type=whole(0, MOST_BLOCKS),
        default=0,
        help="blocks in host memory: v1 offloads to them, v0 swaps; TensorRT-LLM's second pool",
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
