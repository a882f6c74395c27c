"""vLLM v0's engine: schedule, move blocks, compute, sample; each step as long as the model says.

Source: `LLMEngine.step` in `vllm/engine/llm_engine.py` of 0.9.2. v0 announced no cache events, so
steps return none.
"""

from dataclasses import dataclass
from typing import Any

from simworker.engine import BrokenInvariantError, Generation, Load, RefusedError
from simworker.latency import LatencyModel, StepWork
from simworker.sampler import extend_seed, next_token, seed_of
from simworker.v0.device import Device
from simworker.v0.requests.lora import LoRAConfig, LoRARequest
from simworker.v0.requests.sequence import Logprob, Sequence, SequenceGroup, SequenceStatus
from simworker.v0.scheduling.scheduler import Scheduler
from simworker.v0.scheduling.scheduler_config import CacheConfig, SchedulerConfig
from simworker.v0.scheduling.scheduler_outputs import SchedulerOutputs, SequenceGroupMetadata
from simworker.v0.worker import Chunk, Worker


@dataclass(slots=True)
class _Open:
    """A request that is not through."""

    generation: Generation
    group: SequenceGroup
    seed: bytes
    """Stands for all tokens so far where the next is sampled."""


class V0Engine:
    """The three-queue scheduler, and where one is given, a worker whose memory holds what it must.

    With chunked prefill and prefix caching both, 0.9.2 takes a prompt's blocks for computed when its
    first chunk is scheduled. Whoever shares the prompt after that prefill was aborted or preempted
    between two chunks finds blocks that nobody has computed: so it is here, and `check` with a worker
    then raises.
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
        """What the step last begun computes."""
        self.prefix_cache_queries = 0
        self.prefix_cache_hits = 0
        self._vocab_size = vocab_size
        self._open: dict[str, _Open] = {}
        self._adapters: dict[tuple[str, str], LoRARequest] = {}
        self._sequences = 0
        self._step: list[tuple[_Open, SequenceGroupMetadata]] = []

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        return bool(self._open)

    def submit(self, generation: Generation) -> None:
        """Take a request. Raises RefusedError where it can never be served."""
        self._check_request(generation)
        lora = self._adapter(generation)
        seq = Sequence(
            self._sequences,
            {"prompt_token_ids": generation.prompt},
            self.scheduler.cache_config.block_size,
            lora_request=lora,
            cache_salt=generation.cache_salt,
        )
        self._sequences += 1
        group = SequenceGroup(
            generation.request_id,
            [seq],
            self.now,
            lora_request=lora,
            priority=generation.priority,
        )
        self._open[generation.request_id] = _Open(generation, group, seed_of(generation.prompt))
        self.scheduler.add_seq_group(group)

    def abort(self, request_id: str) -> None:
        """Drop a request; unknown ones are passed over. What it had computed stays cached."""
        if self._open.pop(request_id, None) is not None:
            self.scheduler.abort_seq_group(request_id)

    def begin_step(self, horizon: float = 0.0) -> float:
        """Schedule a step, and execute it where there is a worker; return its modelled seconds.

        Raises RuntimeError where blocks have to be swapped out and the CPU has no room: 0.9.2 ends
        there too.
        """
        del horizon
        metadata, outputs, _ = self.scheduler.schedule()
        assert not outputs.ignored_seq_groups, "what could never run was refused"
        self._step = [(self._open[told.request_id], told) for told in metadata]
        self.work = StepWork()
        chunks = [self._chunk(found, told) for found, told in self._step]
        if self.worker is not None:
            _execute(self.worker, chunks, outputs)
        seconds = self.latency.step(self.work)
        self.now += seconds
        return seconds

    def end_step(self) -> list[Any]:
        """Generate what the step was for. Nothing is announced."""
        sampled: list[tuple[_Open, int]] = []
        for found, told in self._step:
            if not self._is_open(found):
                continue
            found.group.update_num_computed_tokens(told.token_chunk_size)
            if told.do_sample:
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
        """Return the figures that metrics show; swapped requests count as waiting."""
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
        """Forget all cached content; False, and nothing done, while requests hold blocks.

        With `reset_external` also that of blocks on the CPU.
        """
        manager = self.scheduler.block_manager
        done = manager.reset_prefix_cache(Device.GPU)
        return (not reset_external or manager.reset_prefix_cache(Device.CPU)) and done

    def check(self) -> None:
        """Raise BrokenInvariantError unless requests, queues and blocks agree, and memory is right."""
        self.scheduler.check()
        queued = {group.request_id for group in self.scheduler.groups()}
        if queued != self._open.keys():
            raise BrokenInvariantError(f"{sorted(queued)} queued, {sorted(self._open)} open")
        if self.worker is not None:
            for group in (*self.scheduler.running, *self.scheduler.swapped):
                self._check_content(self.worker, group.first_seq)

    def _is_open(self, found: _Open) -> bool:
        """Whether a request was not aborted meanwhile."""
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
            raise RefusedError(f"request_id {generation.request_id} is in use")
        if generation.skip_reading_prefix_cache:
            raise RefusedError("skip_reading_prefix_cache is not known to vLLM v0")
        if not generation.prompt or generation.max_tokens < 1:
            raise RefusedError(
                f"{generation.num_prompt_tokens} prompt tokens and max_tokens "
                f"{generation.max_tokens}: each has to be at least 1"
            )
        length = generation.num_prompt_tokens + generation.max_tokens
        if length > config.max_model_len:
            raise RefusedError(
                f"{generation.num_prompt_tokens} prompt tokens and max_tokens "
                f"{generation.max_tokens} are more than max_model_len {config.max_model_len}"
            )
        needed = -(-(length + config.num_lookahead_slots) // manager.block_size)
        usable = manager.num_total_gpu_blocks - manager.watermark_blocks
        if needed > usable:
            raise RefusedError(f"{length} tokens need {needed} blocks, and {usable} can be had")

    def _adapter(self, generation: Generation) -> LoRARequest | None:
        if not generation.lora_name:
            return None
        if not self.scheduler.lora_enabled:
            raise RefusedError(f"lora_name {generation.lora_name}: the engine takes no adapters")
        name, path = generation.lora_name, generation.lora_path
        if (name, path) not in self._adapters:
            self._adapters[name, path] = LoRARequest(name, len(self._adapters) + 1, path)
        return self._adapters[name, path]

    def _chunk(self, found: _Open, told: SequenceGroupMetadata) -> Chunk:
        """Return what a group computes; count it as work."""
        seq = found.group.first_seq
        before = seq.get_num_computed_tokens()
        end = before + told.token_chunk_size
        if told.is_prompt:
            # What is cached is not computed; but the last token is, whose logits are needed.
            cached = len(told.computed_block_nums) * seq.block_size
            self._count_lookup(found.generation, min(cached, seq.get_len() - 1))
            before = max(before, min(cached, end - 1))
            self.work.prefills.append((end - before, before))
        else:
            self.work.decoding += 1
            self.work.decoding_context += before
        table = told.block_tables[seq.seq_id]
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
        seq.append_token_id(token, {token: Logprob(0.0)})
        generation.num_output_tokens = seq.get_output_len()
        generation.num_preemptions = found.group.num_preemptions
        if seq.get_output_len() == generation.max_tokens:
            seq.status = SequenceStatus.FINISHED_LENGTH_CAPPED
        return token


def _execute(worker: Worker[Any], chunks: list[Chunk], outputs: SchedulerOutputs) -> None:
    worker.execute_model(
        chunks,
        outputs.blocks_to_swap_in,
        outputs.blocks_to_swap_out,
        outputs.blocks_to_copy,
    )


def _check_config(config: SchedulerConfig, cache_config: CacheConfig) -> None:
    if cache_config.sliding_window is not None:
        raise ValueError(
            f"sliding_window {cache_config.sliding_window}: the engine takes None, for 0.9.2 admits "
            "a prompt by its window, allocates it whole, and fails where that does not fit"
        )
    if config.is_multi_step:
        raise ValueError(f"num_scheduler_steps {config.num_scheduler_steps}: the engine takes 1")
    if (
        config.chunked_prefill_enabled
        and config.preemption_mode == "swap"
        and config.max_num_batched_tokens < config.max_model_len
    ):
        raise ValueError(
            f"max_num_batched_tokens {config.max_num_batched_tokens} is less than max_model_len "
            f'{config.max_model_len}: with preemption_mode "swap" a long prefill swapped out between '
            "two chunks would never come back"
        )
