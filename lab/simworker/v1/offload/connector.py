"""KV offloading: full blocks are copied to host memory, and back when a request needs them.

The scheduler calls its methods, whose names are those of vLLM's connectors: `on_new_request` before any
other call for a request; `get_num_new_matched_tokens` for a waiting one; `update_state_after_alloc` when
its blocks are allocated (it then waits, WAITING_FOR_REMOTE_KVS, and its loaded blocks are cached when
the load ends); `build_connector_meta` once a step, after scheduling and before `num_computed_tokens` of
scheduled requests advance; `request_finished` before its blocks are freed, which is at once, except for
an aborted request whose load is under way; `update_connector_output` at the end of a step, and after
that, and after the GPU pool's events, `take_events`. While `has_pending_push_work` is true, steps go on.

A load may cover all of a request's tokens. When it has ended, the scheduler then takes one token back
(`num_computed_tokens = num_tokens - 1`), since the last token must be computed for its logits.

A store reads GPU blocks that other requests may get before it ends: blocks are freed when their request
has finished, or when they leave a sliding window. Whenever such a block is allocated again, and when a
request is preempted, `jobs_to_flush` has the jobs that read it, and the step waits for them before it
computes. `lab/simworker/v1/offload/transfer.py` decides when jobs end.

Each of a request's chunks is offered to the pool once, when it is full. A group with a sliding window
offers only chunks that a later hit can need (`OffloadGroup.reachable`).

Source: `vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py` of 0.32, with the CPU
backend and prefix caching on; one file as there, to be read beside it. Left out: drafters' groups,
state-space groups and partial tails, several tiers, limits that requests ask for, transfers that fail.

An error of 0.32 is copied, since it changes events: chunks of a window that are looked at again are
stored from blocks that another request may have by then. That happens when answers are offloaded and
windows are kept densely (interval None), and after a reset while requests run. Another error is not
copied: parts of a window's chunk with a gap between them go to their own places, not next to each other.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from warmpath.lab.simworker.engine import BrokenInvariantError
from warmpath.lab.simworker.v1.cache.kv_cache_block import KVCacheBlocks
from warmpath.lab.simworker.v1.cache.kv_cache_event import CacheEvent
from warmpath.lab.simworker.v1.hashing.block_hash import maybe_convert_block_hash
from warmpath.lab.simworker.v1.offload.event import OffloadEvents
from warmpath.lab.simworker.v1.offload.group import offload_groups, retention
from warmpath.lab.simworker.v1.offload.lookup import Held, loadable_tokens
from warmpath.lab.simworker.v1.offload.pool import CPUOffloadingManager, LookupResult, OffloadKey
from warmpath.lab.simworker.v1.offload.request import GroupState, OffloadRequest
from warmpath.lab.simworker.v1.offload.transfer import (
    NULL_BLOCK_ID,
    BlockCopy,
    OffloadingMetadata,
    TransferJob,
)
from warmpath.lab.simworker.v1.requests.request import Request
from warmpath.lab.simworker.v1.specs.kv_cache_spec import KVCacheGroupSpec


@dataclass(slots=True)
class _Job:
    req_id: str
    is_store: bool
    keys: list[OffloadKey]
    window_block_ids: list[int]
    """Blocks that the job reads and that may be freed while the request runs."""
    block_ids: list[int]
    """Blocks that the job reads and that may be freed when the request has finished."""


class OffloadingConnector:
    """Decides which chunks of a pool to store and to load.

    `kv_cache_groups` are those of the scheduler's KVCacheConfig, `hash_block_size` is the tokens of one
    of `request.block_hashes`, `blocks_per_chunk` the blocks offloaded together. With
    `offload_prompt_only`, the default, blocks of generated tokens are not stored. `retention_interval`
    is `KVCacheConfig.prefix_cache_retention_interval`. With `self_describing_kv_events`, events carry
    tokens and parents; `use_int_block_hashes` is that of the KVCacheManager. Raises ValueError for
    groups that cannot be offloaded.
    """

    def __init__(
        self,
        kv_cache_groups: Sequence[KVCacheGroupSpec],
        manager: CPUOffloadingManager,
        *,
        hash_block_size: int,
        blocks_per_chunk: int = 1,
        offload_prompt_only: bool = True,
        retention_interval: int | None = None,
        self_describing_kv_events: bool = False,
        use_int_block_hashes: bool = True,
    ) -> None:
        self.manager = manager
        self._groups = offload_groups(kv_cache_groups, hash_block_size, blocks_per_chunk)
        self._retention = retention(self._groups, retention_interval)
        self._blocks_per_chunk = blocks_per_chunk
        self._prompt_only = offload_prompt_only
        self._events = OffloadEvents(
            kv_cache_groups,
            hash_block_size,
            self_describing_kv_events,
            partial(maybe_convert_block_hash, use_int_block_hashes=use_int_block_hashes),
        )
        self._requests: dict[str, OffloadRequest] = {}
        self._jobs: dict[int, _Job] = {}
        self._next_job = 0
        self._stale_below = 0
        """A reset has forgotten the jobs with lower numbers."""
        self._stale_loads: dict[int, str] = {}
        """Number of a forgotten load -> id of its request, which still waits for its end."""
        self._load_jobs: dict[int, TransferJob] = {}
        self._to_flush: set[int] = set()
        self._allocated: set[int] = set()
        """GPU blocks allocated for the step being scheduled."""
        self._being_loaded: set[OffloadKey] = set()
        self._read_by: dict[int, set[int]] = {}
        """GPU block that may be allocated again -> numbers of the stores that read it."""

    def on_new_request(self, request: Request) -> None:
        groups = [GroupState(group) for group in self._groups]
        self._requests[request.request_id] = OffloadRequest(request, groups)

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Return how many tokens can be loaded after those cached on the GPU, and whether any can.

        Returns None if the scheduler must ask in a later step, because transfers of the request are
        under way, or because chunks that it would hit are being written, or loaded for another request.
        """
        state = self._requests[request.request_id]
        for part in state.groups:
            part.block_ids.clear()
        if state.jobs:
            return None, False
        state.update_keys()
        state.num_local_tokens = num_computed_tokens
        if request.skip_reading_prefix_cache:
            return 0, False
        held = [Held(part.group, part.keys) for part in state.groups]

        def lookup(key: OffloadKey) -> LookupResult:
            result = self.manager.lookup(key)
            if result is LookupResult.HIT:
                self._events.on_hit(request, self._groups[key.group_idx], key, state.context)
            return result

        found = loadable_tokens(held, request.num_tokens, num_computed_tokens, lookup)
        if found is None:
            return None, False
        loaded = (key for part in held for key in part.loaded_keys(num_computed_tokens, found))
        if found and not self._being_loaded.isdisjoint(loaded):
            return None, False
        return found, bool(found)

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        """Plan the load of `num_external_tokens` tokens, if any, into a request's blocks."""
        if not num_external_tokens:
            return
        state = self._requests[request.request_id]
        cached = state.num_local_tokens + num_external_tokens
        keys: list[OffloadKey] = []
        places: list[tuple[int, OffloadKey, int]] = []
        for part in state.groups:
            group = part.group
            own = blocks.blocks[group.group_idx]
            self._allocated.update(block.block_id for block in own)
            end = -(-cached // group.block_size)
            first = state.num_local_tokens // group.block_size
            # Earlier blocks are hits on the GPU; those before a window are null blocks.
            while first < end and (
                own[first].block_id == NULL_BLOCK_ID or own[first].block_hash is not None
            ):
                first += 1
            chunks = range(first // self._blocks_per_chunk, -(-cached // group.chunk_size))
            if first < end:
                keys += part.keys[chunks.start : chunks.stop]
            for number in range(first, end):
                chunk, offset = divmod(number, self._blocks_per_chunk)
                places.append((own[number].block_id, part.keys[chunk], offset))
            part.next_stored = chunks.stop
        chunk_ids = dict(zip(keys, self.manager.prepare_load(keys, state.context), strict=True))
        copies = tuple(BlockCopy(block, chunk_ids[key], offset) for block, key, offset in places)
        job = self._begin(state, _Job(request.request_id, False, keys, [], []))
        self._load_jobs[job] = TransferJob(request.request_id, is_store=False, copies=copies)
        self._being_loaded.update(keys)

    def build_connector_meta(
        self,
        *,
        num_scheduled_tokens: Mapping[str, int],
        new_block_ids: Mapping[str, Sequence[Sequence[int]]],
        resumed_req_ids: Iterable[str] = (),
        preempted_req_ids: Iterable[str] = (),
        finished_req_ids: Iterable[str] = (),
    ) -> OffloadingMetadata:
        """Return the jobs that the scheduled step begins, and those for which it waits.

        `num_scheduled_tokens` and `new_block_ids` are by request; the latter, group by group, has all
        blocks of a new or resumed request, else those allocated for this step. `preempted_req_ids` and
        `finished_req_ids` are those since the step before.
        """
        for req_id in num_scheduled_tokens:
            self._requests[req_id].update_keys()
        self._take_new_blocks(new_block_ids, set(resumed_req_ids))
        for req_id in preempted_req_ids:
            if req_id in self._requests:
                self._to_flush |= self._requests[req_id].jobs
        for block_id in self._allocated & self._read_by.keys():
            self._to_flush |= self._read_by[block_id]
        finished = sorted(finished_req_ids)
        stores = {}
        for req_id in (*num_scheduled_tokens, *finished):
            state = self._requests.get(req_id)
            if state is not None:
                stores.update(self._store(state, num_scheduled_tokens.get(req_id, 0)))
        meta = OffloadingMetadata(self._load_jobs, stores, self._to_flush)
        for req_id in finished:
            state = self._requests.get(req_id)
            if state is not None:
                state.signaled = True
                self.manager.on_request_finished(state.context)
                if not state.jobs:
                    del self._requests[req_id]
        self._load_jobs, self._to_flush, self._allocated = {}, set(), set()
        return meta

    def update_connector_output(self, completed_jobs: Iterable[int]) -> list[str]:
        """End jobs; return the ids of the requests whose loads have ended."""
        loaded = []
        for number in completed_jobs:
            if number < self._stale_below:
                if number in self._stale_loads:
                    loaded.append(self._stale_loads.pop(number))
                continue
            job = self._jobs.pop(number)
            state = self._requests[job.req_id]
            if job.is_store:
                self.manager.complete_store(job.keys)
                self._unwatch(number, job.window_block_ids)
                if state.final_tokens is not None:
                    self._unwatch(number, job.block_ids)
            else:
                self.manager.complete_load(job.keys)
                self._being_loaded.difference_update(job.keys)
                loaded.append(job.req_id)
            state.jobs.remove(number)
            if state.signaled and not state.jobs:
                del self._requests[job.req_id]
        return loaded

    def request_finished(self, request: Request, *, aborted: bool) -> None:
        """Record a request's end: a step that reuses its blocks first waits for its jobs."""
        state = self._requests[request.request_id]
        if aborted:
            state.final_tokens = request.num_computed_tokens
        else:
            # The last token was sampled, but never computed.
            state.final_tokens = max(request.num_prompt_tokens, request.num_tokens - 1)
        state.update_keys()
        for number in state.jobs:
            self._watch(number, self._jobs[number].block_ids)

    def take_events(self) -> list[CacheEvent]:
        return self._events.translate(self.manager.take_events())

    def has_pending_push_work(self) -> bool:
        """Return whether jobs are under way."""
        return bool(self._jobs)

    def reset_cache(self) -> None:
        """Forget all chunks, between steps. Jobs under way must end before the next step computes."""
        if self._load_jobs or self._allocated:
            raise BrokenInvariantError("reset within a step")
        self._to_flush.update(self._jobs)
        for req_id in [
            key for key, state in self._requests.items() if state.final_tokens is not None
        ]:
            del self._requests[req_id]
        self.manager.reset_cache()
        for state in self._requests.values():
            state.jobs.clear()
            for part in state.groups:
                part.next_stored = 0
        self._stale_below = self._next_job
        self._stale_loads.update(
            (number, job.req_id) for number, job in self._jobs.items() if not job.is_store
        )
        self._jobs.clear()
        self._read_by.clear()
        self._being_loaded.clear()
        self._events.reset()

    def _take_new_blocks(
        self, new_block_ids: Mapping[str, Sequence[Sequence[int]]], resumed: set[str]
    ) -> None:
        before = {
            req_id: [
                0 if req_id in resumed else len(part.block_ids)
                for part in self._requests[req_id].groups
            ]
            for req_id in new_block_ids
        }
        for req_id, by_group in new_block_ids.items():
            state = self._requests[req_id]
            state.add_blocks(by_group, resumed=req_id in resumed)
            for part in state.groups:
                self._allocated.update(by_group[part.group.group_idx])
        self._allocated.discard(NULL_BLOCK_ID)
        # Blocks that left a window and that another request has got can no longer be stored.
        for req_id, state in self._requests.items():
            for number, part in enumerate(state.groups):
                if part.group.window is None:
                    continue
                end = before[req_id][number] if req_id in before else len(part.block_ids)
                for at in range(part.next_stored * self._blocks_per_chunk, end):
                    if part.block_ids[at] in self._allocated:
                        part.block_ids[at] = NULL_BLOCK_ID

    def _store(self, state: OffloadRequest, num_scheduled: int) -> dict[int, TransferJob]:
        """Return the job that stores a request's new chunks, if any, under its number."""
        request = state.request
        finished = state.final_tokens is not None
        tokens = state.final_tokens if finished else request.num_computed_tokens + num_scheduled
        tokens = min(tokens or 0, request.num_tokens)
        if self._prompt_only:
            tokens = min(tokens, request.num_prompt_tokens)
        ends = [part.storable(tokens) for part in state.groups]
        offered = {
            part.keys[chunk]: (part, chunk)
            for part in state.groups
            for chunk in part.chunks_to_store(tokens, request, self._retention, finished=finished)
        }
        output = self.manager.prepare_store(offered, state.context) if offered else None
        if offered and output is None:
            return {}
        for part, end in zip(state.groups, ends, strict=True):
            part.next_stored = max(part.next_stored, end)
        if output is None or not output.keys_to_store:
            return {}
        job = _Job(request.request_id, True, output.keys_to_store, [], [])
        copies = []
        for key, chunk_id in zip(output.keys_to_store, output.chunk_ids, strict=True):
            part, chunk = offered[key]
            self._events.on_store(request, part.group, chunk, key)
            for offset, block_id in enumerate(part.blocks_of(chunk)):
                if block_id != NULL_BLOCK_ID:
                    copies.append(BlockCopy(block_id, chunk_id, offset))
                    read = job.block_ids if part.group.window is None else job.window_block_ids
                    read.append(block_id)
        number = self._begin(state, job)
        self._watch(number, job.window_block_ids)
        if finished:
            self._watch(number, job.block_ids)
            if self._allocated.intersection(job.block_ids):
                self._to_flush.add(number)
        return {number: TransferJob(request.request_id, is_store=True, copies=tuple(copies))}

    def _begin(self, state: OffloadRequest, job: _Job) -> int:
        number = self._next_job
        self._next_job += 1
        self._jobs[number] = job
        state.jobs.add(number)
        return number

    def _watch(self, number: int, block_ids: Iterable[int]) -> None:
        for block_id in block_ids:
            self._read_by.setdefault(block_id, set()).add(number)

    def _unwatch(self, number: int, block_ids: Iterable[int]) -> None:
        for block_id in block_ids:
            # A window's block can be listed twice, through the error that the docstring above describes.
            readers = self._read_by.get(block_id, set())
            readers.discard(number)
            if not readers:
                self._read_by.pop(block_id, None)

    def check(self) -> None:
        self.manager.check()
        of_requests = sorted(number for state in self._requests.values() for number in state.jobs)
        if of_requests != sorted(self._jobs):
            raise BrokenInvariantError(
                f"the jobs are {sorted(self._jobs)}, but those of all requests are {of_requests}"
            )
        for req_id, state in self._requests.items():
            kinds = [self._jobs[number].is_store for number in state.jobs]
            if not all(kinds) and len(kinds) > 1:
                raise BrokenInvariantError(
                    f"{req_id} is loaded while other jobs of it are under way"
                )
            for part in state.groups:
                if part.next_stored > len(part.keys):
                    raise BrokenInvariantError(f"{req_id} offered more chunks than it has")
        for job in self._jobs.values():
            wanted = LookupResult.HIT_PENDING if job.is_store else LookupResult.HIT
            if any(self.manager.lookup(key) is not wanted for key in job.keys):
                raise BrokenInvariantError(f"a chunk of a job of {job.req_id} is not {wanted.name}")
        readers = {number for numbers in self._read_by.values() for number in numbers}
        if not readers <= self._jobs.keys():
            raise BrokenInvariantError(
                f"blocks are watched for unknown jobs {readers - self._jobs.keys()}"
            )
