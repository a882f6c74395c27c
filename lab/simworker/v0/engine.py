"""vLLM v0's engine: schedule, move blocks, compute, sample; each step takes its modelled seconds.

Source: `LLMEngine.step` in `vllm/engine/llm_engine.py` of 0.9.2. v0 announced no cache events, so
steps return none.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any, Generic

from warmpath.lab.simworker.engine import (
    BrokenInvariantError,
    Generation,
    Load,
    RequestRefusedError,
)
from warmpath.lab.simworker.latency import LatencyModel, StepWork
from warmpath.lab.simworker.sampler import extend_seed, next_token, seed_of
from warmpath.lab.simworker.v0.device import BlockPairs, Device
from warmpath.lab.simworker.v0.memory.array_backend import ArrayT
from warmpath.lab.simworker.v0.memory.block_content import BlockContent
from warmpath.lab.simworker.v0.memory.cache_engine import CacheEngine
from warmpath.lab.simworker.v0.requests.lora import LoRAConfig, LoRARequest
from warmpath.lab.simworker.v0.requests.sequence import Sequence, SequenceGroup, SequenceStatus
from warmpath.lab.simworker.v0.scheduling.scheduler import Scheduler
from warmpath.lab.simworker.v0.scheduling.scheduler_config import CacheConfig, SchedulerConfig
from warmpath.lab.simworker.v0.scheduling.scheduler_outputs import (
    SchedulerOutputs,
    SequenceGroupMetadata,
)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens of one sequence that a forward pass computes."""

    block_ids: Items[int]
    """The sequence's block table."""
    token_ids: Items[int]
    """The sequence's tokens, from its first on."""
    computed: range
    """Positions of the tokens to compute."""
    extra_hash: int | None = None


class Worker(Generic[ArrayT]):
    """Executes the scheduler's decisions on memory: a cache engine, and a forward pass that fills it.

    Source: `vllm/worker/worker.py` of 0.9.2, in another order. 0.9.2 swaps in first, which can go wrong:
    the destination of a copy on write may be freed in the same step, since its content is cached
    already, and a block may be swapped into it, which the copy then overwrites. In the scheduler's own
    order, swaps out, copies, swaps in, no block is overwritten that is still needed.
    """

    def __init__(self, cache_engine: CacheEngine[ArrayT]) -> None:
        self.cache_engine = cache_engine
        self.content = BlockContent(cache_engine)

    def execute_model(
        self,
        chunks: Iterable[Chunk],
        blocks_to_swap_in: BlockPairs,
        blocks_to_swap_out: BlockPairs,
        blocks_to_copy: BlockPairs,
    ) -> None:
        """Execute one step: swaps out, copies, swaps in, then the forward pass."""
        self.cache_engine.swap_out(blocks_to_swap_out)
        self.cache_engine.copy(blocks_to_copy)
        self.cache_engine.swap_in(blocks_to_swap_in)
        for chunk in chunks:
            self.content.compute(chunk.block_ids, chunk.token_ids, chunk.computed, chunk.extra_hash)


@dataclass(slots=True)
class _Open:
    """A request that has not ended."""

    generation: Generation
    group: SequenceGroup
    seed: bytes
    """Digest of all tokens so far (`seed_of`), from which the next is sampled."""


class V0Engine:
    """The three-queue scheduler, and optionally a worker with memory whose content can be checked.

    With both chunked prefill and prefix caching, 0.9.2 counts a prompt's blocks as computed when its
    first chunk is scheduled. If the request is aborted or preempted between two chunks, another one with
    the same prompt then finds blocks that were never computed. The same happens here, and `check` with a
    worker then raises.
    """

    def __init__(
        self,
        scheduler_config: SchedulerConfig,
        cache_config: CacheConfig,
        lora_config: LoRAConfig | None,
        latency: LatencyModel,
        worker: Worker[Any] | None = None,
        *,
        vocab_size: int,
    ) -> None:
        _check_config(scheduler_config, cache_config)
        self.now = 0.0
        """Modelled seconds of all steps so far."""
        self.scheduler = Scheduler(
            scheduler_config, cache_config, lora_config, clock=lambda: self.now
        )
        self.latency = latency
        self.worker = worker
        self.work = StepWork()
        """The work of the step begun last."""
        self.prefix_cache_queries = 0
        self.prefix_cache_hits = 0
        self._vocab_size = vocab_size
        self._open: dict[str, _Open] = {}
        self._adapters: dict[tuple[str, str], LoRARequest] = {}
        self._sequences = 0
        self._step: list[tuple[_Open, SequenceGroupMetadata]] = []

    @property
    def busy(self) -> bool:
        return bool(self._open)

    def submit(self, generation: Generation) -> None:
        self._check_request(generation)
        lora = self._adapter(generation)
        seq = Sequence(
            self._sequences,
            generation.prompt,
            self.scheduler.cache_config.block_size,
            lora_request=lora,
            cache_salt=generation.cache_salt,
        )
        self._sequences += 1
        group = SequenceGroup(
            generation.request_id, [seq], self.now, lora_request=lora, priority=generation.priority
        )
        self._open[generation.request_id] = _Open(generation, group, seed_of(generation.prompt))
        self.scheduler.add_seq_group(group)

    def abort(self, request_id: str) -> None:
        if self._open.pop(request_id, None) is not None:
            self.scheduler.abort_seq_group(request_id)

    def begin_step(self, horizon: float = 0.0) -> float:
        """Schedule a step, and execute it if there is a worker; return its modelled seconds.

        Raises RuntimeError if blocks have to be swapped out and the CPU has no room; 0.9.2 fails then
        too.
        """
        del horizon
        groups, outputs, _ = self.scheduler.schedule()
        assert not outputs.ignored_seq_groups, "submit refuses requests that can never run"
        self._step = [(self._open[metadata.request_id], metadata) for metadata in groups]
        self.work = StepWork()
        chunks = [self._chunk(found, metadata) for found, metadata in self._step]
        if self.worker is not None:
            _execute(self.worker, chunks, outputs)
        seconds = self.latency.step(self.work)
        self.now += seconds
        return seconds

    def end_step(self) -> list[Any]:
        """Sample the step's tokens and hand them out; return no events."""
        sampled: list[tuple[_Open, int]] = []
        for found, metadata in self._step:
            if not self._is_open(found):
                continue
            found.group.update_num_computed_tokens(metadata.token_chunk_size)
            if metadata.do_sample:
                sampled.append((found, self._sample(found)))
        self.scheduler.free_finished_seq_groups()
        self.scheduler.get_and_reset_finished_requests_ids()
        self._step = []
        for found, token in sampled:
            if not self._is_open(found):
                continue
            finished = found.group.is_finished()
            if finished:
                del self._open[found.generation.request_id]
            found.generation.on_tokens([token], finished)
        return []

    def load(self) -> Load:
        scheduler = self.scheduler
        manager = scheduler.block_manager
        free = manager.get_num_free_gpu_blocks() / max(manager.num_total_gpu_blocks, 1)
        return Load(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting) + len(scheduler.swapped),
            kv_cache_usage=1 - free,
            prefix_cache_queries=self.prefix_cache_queries,
            prefix_cache_hits=self.prefix_cache_hits,
            preemptions=scheduler.num_cumulative_preemption,
        )

    def reset_prefix_cache(self, *, reset_external: bool = False) -> bool:
        """Forget all of the GPU's cached content; False, with it kept, while requests hold blocks.

        With `reset_external` the CPU's content is forgotten too, even if the GPU's could not be; False
        while requests are swapped out.
        """
        manager = self.scheduler.block_manager
        done = manager.reset_prefix_cache(Device.GPU)
        return (not reset_external or manager.reset_prefix_cache(Device.CPU)) and done

    def check(self) -> None:
        self.scheduler.check()
        queued = {group.request_id for group in self.scheduler.groups()}
        if queued != self._open.keys():
            raise BrokenInvariantError(f"{sorted(queued)} queued, {sorted(self._open)} open")
        if self.worker is not None:
            for group in (*self.scheduler.running, *self.scheduler.swapped):
                self._check_content(self.worker, group.first_seq)

    def _is_open(self, found: _Open) -> bool:
        """Whether a request has not been aborted meanwhile."""
        return self._open.get(found.generation.request_id) is found

    def _check_content(self, worker: Worker[Any], seq: Sequence) -> None:
        device = Device.CPU if seq.status is SequenceStatus.SWAPPED else Device.GPU
        manager = self.scheduler.block_manager
        table = [
            manager.block_allocator.get_physical_block_id(device, block_id)
            for block_id in manager.get_block_table(seq)
        ]
        computed = seq.get_token_ids()[: seq.get_num_computed_tokens()]
        wrong = next(worker.content.find_wrong(device, table, computed, seq.extra_hash()), None)
        if wrong is not None:
            raise BrokenInvariantError(f"layer {wrong[0]} of {seq} is wrong at token {wrong[1]}")

    def _check_request(self, generation: Generation) -> None:
        config, manager = self.scheduler.scheduler_config, self.scheduler.block_manager
        if generation.request_id in self._open:
            raise RequestRefusedError(f"request_id {generation.request_id} is in use")
        if generation.skip_reading_prefix_cache:
            raise RequestRefusedError("skip_reading_prefix_cache: vLLM v0 has no such option")
        if not generation.prompt or generation.max_tokens < 1:
            raise RequestRefusedError(
                f"{generation.num_prompt_tokens} prompt tokens and max_tokens "
                f"{generation.max_tokens}: each has to be at least 1"
            )
        length = generation.num_prompt_tokens + generation.max_tokens
        if length > config.max_model_len:
            raise RequestRefusedError(
                f"{generation.num_prompt_tokens} prompt tokens and max_tokens "
                f"{generation.max_tokens} are more than max_model_len {config.max_model_len}"
            )
        needed = -(-(length + config.num_lookahead_slots) // manager.block_size)
        usable = manager.num_total_gpu_blocks - manager.watermark_blocks
        if needed > usable:
            raise RequestRefusedError(
                f"{length} tokens need {needed} blocks, and there are {usable}"
            )

    def _adapter(self, generation: Generation) -> LoRARequest | None:
        if not generation.lora_name:
            return None
        if not self.scheduler.lora_enabled:
            raise RequestRefusedError(
                f"lora_name {generation.lora_name}: the engine takes no adapters"
            )
        name, path = generation.lora_name, generation.lora_path
        if (name, path) not in self._adapters:
            self._adapters[name, path] = LoRARequest(name, len(self._adapters) + 1, path)
        return self._adapters[name, path]

    def _chunk(self, found: _Open, metadata: SequenceGroupMetadata) -> Chunk:
        """Return the tokens that a group computes, and add them to the step's work."""
        seq = found.group.first_seq
        before = seq.get_num_computed_tokens()
        end = before + metadata.token_chunk_size
        if metadata.is_prompt:
            # Cached tokens are not computed, except the last one, whose logits are needed.
            cached = len(metadata.computed_block_nums) * seq.block_size
            self._count_lookup(found.generation, min(cached, seq.get_len() - 1))
            before = max(before, min(cached, end - 1))
            self.work.prefills.append((end - before, before))
        else:
            self.work.decoding += 1
            self.work.decoding_context += before
        table = metadata.block_tables[seq.seq_id]
        return Chunk(table, seq.get_token_ids(), range(before, end), seq.extra_hash())

    def _count_lookup(self, generation: Generation, cached: int) -> None:
        if generation.num_cached_tokens < 0:
            generation.num_cached_tokens = cached
            self.prefix_cache_queries += generation.num_prompt_tokens
            self.prefix_cache_hits += cached

    def _sample(self, found: _Open) -> int:
        seq, generation = found.group.first_seq, found.generation
        token = next_token(found.seed, seq.get_last_token_id(), seq.get_len(), self._vocab_size)
        found.seed = extend_seed(found.seed, token)
        seq.append_token_id(token)
        generation.num_output_tokens = seq.get_output_len()
        generation.num_preemptions = found.group.num_preemptions
        if seq.get_output_len() == generation.max_tokens:
            seq.status = SequenceStatus.FINISHED_LENGTH_CAPPED
        return token


def _execute(worker: Worker[Any], chunks: list[Chunk], outputs: SchedulerOutputs) -> None:
    worker.execute_model(
        chunks, outputs.blocks_to_swap_in, outputs.blocks_to_swap_out, outputs.blocks_to_copy
    )


def _check_config(config: SchedulerConfig, cache_config: CacheConfig) -> None:
    if cache_config.sliding_window is not None:
        raise ValueError(
            f"sliding_window {cache_config.sliding_window}: the engine takes None, since 0.9.2 admits "
            "a prompt by its window, allocates it whole, and fails if that does not fit"
        )
    if config.is_multi_step:
        raise ValueError(f"num_scheduler_steps {config.num_scheduler_steps}: the engine takes 1")
    if (
        config.enable_chunked_prefill
        and config.preemption_mode == "swap"
        and config.max_num_batched_tokens < config.max_model_len
    ):
        raise ValueError(
            f"max_num_batched_tokens {config.max_num_batched_tokens} is less than max_model_len "
            f'{config.max_model_len}: with preemption_mode "swap" a long prefill swapped out between '
            "two chunks would never come back"
        )
