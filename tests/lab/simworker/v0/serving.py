"""Makes v0 engines whose memory is real, and serves requests with them."""

from dataclasses import dataclass, field
from typing import Any

from warmpath.lab.simworker.engine import Generation
from warmpath.lab.simworker.latency import LatencyModel
from warmpath.lab.simworker.v0.engine import V0Engine, Worker
from warmpath.lab.simworker.v0.memory.cache_engine import CacheEngine, CacheShape
from warmpath.lab.simworker.v0.memory.numpy_backend import NumpyBackend
from warmpath.lab.simworker.v0.requests.lora import LoRAConfig
from warmpath.lab.simworker.v0.scheduling.scheduler_config import CacheConfig, SchedulerConfig

BLOCK_SIZE = 4
SHAPE = CacheShape(num_layers=1, block_size=BLOCK_SIZE, num_kv_heads=1, head_size=4)

MODES = [
    {"preemption_mode": "recompute"},
    {"preemption_mode": "swap"},
    {"preemption_mode": None, "policy": "priority"},
    {"preemption_mode": "recompute", "enable_chunked_prefill": True, "max_num_batched_tokens": 10},
    {"preemption_mode": "swap", "enable_chunked_prefill": True},
]


@dataclass
class Client:
    """A generation, and the tokens that it got."""

    request_id: str
    prompt: list[int]
    max_tokens: int = 6
    more: dict[str, Any] = field(default_factory=dict)
    tokens: list[int] = field(default_factory=list)
    finished: bool = False

    def __post_init__(self) -> None:
        self.generation = Generation(
            self.request_id, self.prompt, self.max_tokens, self.take, **self.more
        )

    def take(self, tokens: list[int], finished: bool) -> None:
        assert not self.finished
        self.tokens += tokens
        self.finished = finished


def make(
    *,
    gpu_blocks: int = 16,
    cpu_blocks: int = 64,
    caching: bool = False,
    loras: int = 0,
    window: int | None = None,
    **limits: Any,
) -> V0Engine:
    limits = {"max_model_len": 32, "max_num_seqs": 4, "max_num_batched_tokens": 40} | limits
    cache = CacheConfig(
        BLOCK_SIZE,
        enable_prefix_caching=caching,
        sliding_window=window,
        num_gpu_blocks=gpu_blocks,
        num_cpu_blocks=cpu_blocks,
    )
    worker = Worker(CacheEngine(SHAPE, gpu_blocks, cpu_blocks, NumpyBackend()))
    lora = LoRAConfig(max_loras=loras) if loras else None
    return V0Engine(SchedulerConfig(**limits), cache, lora, LatencyModel(), worker, vocab_size=1000)


def step(engine: V0Engine) -> float:
    seconds = engine.begin_step()
    assert engine.end_step() == []
    engine.check()
    return seconds


def serve(engine: V0Engine, *clients: Client) -> None:
    for client in clients:
        engine.submit(client.generation)
    while engine.busy:
        step(engine)


def prompt_of(start: int, length: int) -> list[int]:
    return list(range(start, start + length))
