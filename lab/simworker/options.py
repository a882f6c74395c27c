"""The settings of a process, read from its command line and checked against each other."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from warmpath.lab.simworker.build_engine import ENGINES, EngineSettings, plan_blocks
from warmpath.lab.simworker.command_line import EVENTS_PORT, MODEL_LEN, command_parser
from warmpath.lab.simworker.events.dialect import UnknownDialectError, dialect_named
from warmpath.lab.simworker.events.faulty_outlet import EventFaults
from warmpath.lab.simworker.events.publisher import EndpointError, rank_endpoint
from warmpath.lab.simworker.server.adapters import AdapterError, Adapters
from warmpath.lab.simworker.v1.assemble import KVGroup, kv_cache_config, longest_request


@dataclass(frozen=True, slots=True)
class FaultSettings:
    """Faults from the start, and faults after a time: seconds since the worker is ready."""

    allowed: bool
    """Whether the worker serves /faults (`--allow-faults`)."""
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
    """The topic of events; `{worker}` in it stands for the worker's number in the process."""
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
    api_key: str
    """The key that requests must carry; empty: none."""
    without: Sequence[str]
    """The parts of the API that the worker lacks, of `command_line.LACKS`."""


def parse(argv: Sequence[str] | None) -> Settings:
    """Return the settings of a command line; a wrong one ends the process with status 2."""
    parser = command_parser()
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
    of_v1 = args.engine == "vllm-v1" and dialect.engine == "vllm"
    if args.kv_groups and not of_v1 and args.engine != "trtllm":
        raise argparse.ArgumentTypeError(
            "--kv-groups: only --engine vllm-v1 with a --dialect of vllm, and trtllm, have it"
        )
    if args.kv_groups and args.engine == "trtllm":
        _check_windows(args.kv_groups)
    if args.kv_cache_retention and args.engine != "trtllm":
        raise argparse.ArgumentTypeError("--kv-cache-retention: only --engine trtllm has it")
    if args.eagle and not of_v1:
        raise argparse.ArgumentTypeError(
            "--eagle: only --engine vllm-v1 with a --dialect of vllm has it"
        )
    if (args.gpu_memory is None) != (args.model_config is None):
        raise argparse.ArgumentTypeError("--gpu-memory, --model-config: one needs the other")
    if args.gpu_memory is not None:
        _plan(args, dialect.engine)
    groups = args.kv_groups or (KVGroup(args.block_size),)
    engine: EngineSettings = _read(
        EngineSettings,
        args,
        # SGLang has no form for pages without tokens.
        describes_offloads=dialect.engine == "sglang",
        bytes_per_block=args.bytes_per_token * groups[0].block_size,
        block_size=groups[0].block_size,
        kv_groups=groups,
        use_eagle=args.eagle,
        retention=args.kv_cache_retention,
        max_model_len=args.max_model_len
        # Each of TensorRT-LLM's windows has blocks of its own.
        or _fitting_model_len(args, groups[:1] if args.engine == "trtllm" else groups),
        hash_algo=algo,
    )
    faults: FaultSettings = _read(
        FaultSettings,
        args,
        "fault_",
        allowed=args.allow_faults,
        events=_read(EventFaults, args, "fault_"),
    )
    sockets = args.workers * args.data_parallel_size
    settings: Settings = _read(
        Settings,
        args,
        host=args.listen[0],
        port=args.listen[1],
        replay_endpoint=args.replay_endpoint or f"tcp://127.0.0.1:{EVENTS_PORT + sockets}",
        metrics=args.metrics or kind.metrics or dialect.engine,
        ranks=args.data_parallel_size,
        engine=engine,
        lora_modules=(*((name, name) for name in args.adapter), *args.lora_modules),
        faults=faults,
    )
    return settings


def _read(kind: Any, args: argparse.Namespace, prefix: str = "", **given: Any) -> Any:
    """Return a `kind` of settings: `given` fields, the others from `args` by `prefix` and name."""
    names = (field.name for field in fields(kind))
    read = {name: getattr(args, prefix + name) for name in names if hasattr(args, prefix + name)}
    return kind(**read | given)


def _check_windows(groups: Sequence[KVGroup]) -> None:
    """Raise ArgumentTypeError unless TensorRT-LLM could have these groups."""
    windows = [group.window for group in groups]
    if windows[0] or 0 in windows[1:] or len(set(windows)) < len(windows):
        raise argparse.ArgumentTypeError(
            "--kv-groups: trtllm has full:BLOCK_SIZE first, and then different windows"
        )
    if len({group.block_size for group in groups}) > 1:
        raise argparse.ArgumentTypeError("--kv-groups: trtllm's blocks are all of one size")


def _plan(args: argparse.Namespace, engine: str) -> None:
    """Set the options that follow from the memory of a rank's device."""
    if args.engine != "vllm-v1" or engine != "vllm" or args.kv_groups:
        raise argparse.ArgumentTypeError(
            "--gpu-memory: only --engine vllm-v1 with a --dialect of vllm has it, without --kv-groups"
        )
    plan, args.kv_groups = plan_blocks(args, MODEL_LEN)
    args.blocks = plan.kv_cache_config.num_blocks
    args.bytes_per_token = plan.bytes_per_block // args.block_size


def _fitting_model_len(args: argparse.Namespace, groups: Sequence[KVGroup]) -> int:
    """Return the tokens of the longest request that fits into the cache, at most `MODEL_LEN`.

    vLLM v1 keeps one block, the null block, and does not start with a longer limit.
    """
    cache = kv_cache_config(args.blocks, groups)
    return longest_request(cache, MODEL_LEN, in_flight=args.max_num_batched_tokens)


def _check(settings: Settings) -> None:
    """Raise ArgumentTypeError, EndpointError or AdapterError if settings contradict each other."""
    engine = settings.engine
    # Other engines start all the same, and refuse requests that do not fit.
    most = longest_request(
        kv_cache_config(engine.blocks, engine.kv_groups),
        engine.max_model_len,
        in_flight=engine.max_num_batched_tokens,
    )
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
