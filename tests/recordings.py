"""Recordings of real engines and of our last release (`recorded/`), which only a checkout has.

`warmpath verify` takes the first.
"""

from pathlib import Path

_FOLDER = Path(__file__).with_name("recorded")

VLLM_TRACE = _FOLDER / "vllm-0.32.jsonl.gz"
"""A seeded workload against vLLM 0.32: events, requests and the engine's report on each."""
TOKENIZER = _FOLDER / "tokenizer.json"
"""The tokenizer of that engine."""
KV_CACHE_MANAGER = _FOLDER / "kv-cache-manager.jsonl.gz"
"""Seeded operations on vLLM's own `KVCacheManager`, and their outcomes."""
VLLM_EVENTS = _FOLDER / "vllm-events.json"
"""Payloads encoded by the event classes of vLLM's versions."""
SGLANG_EVENTS = _FOLDER / "sglang-events.json"
"""Payloads encoded by the event classes of SGLang's versions."""
VLLM_LOOKAHEAD = {
    kind: _FOLDER / f"vllm-0.33-lookahead{kind}.jsonl.gz" for kind in ("", "-window", "-3")
}
"""Requests to vLLM 0.33's own `KVCacheManager`, whose hashes cover a token behind a block, or 3."""
TRTLLM_V2_EVENTS = _FOLDER / "trtllm-v2-events.json"
"""Answers of TensorRT-LLM's second cache manager, written after its source."""
LMCACHE = {
    mode: _FOLDER / f"lmcache-{mode}.jsonl.gz" for mode in ("in-process", "server", "server-events")
}
"""Workloads against vLLM 0.32 with LMCache 0.5.6, and the events of its server (`tests/engines/lmcache/` of commit 7b94846c)."""
VLLM_HASHES = _FOLDER / "vllm-hashes.json"
"""Hashes of blocks made by vLLM's own functions."""
VLLM_APIS = _FOLDER / "vllm-0.32-apis.jsonl.gz"
"""Requests of vLLM's APIs, the tokens that it makes of them, and its responses."""
SGLANG_APIS = _FOLDER / "sglang-0.5.23-apis.jsonl.gz"
"""The tokens that SGLang makes of the same requests."""
NIM = _FOLDER / "nim.csv"
"""Published measurements of engines (`lab.simworker.presets`), in milliseconds."""
LAST_RELEASE = _FOLDER / "release-0.1.0.json"
"""A publisher of the last release: its gRPC stream and its keys in Redis (`tests/upgrade/`)."""
