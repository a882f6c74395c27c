"""Every live sequence's cache holds what its tokens need, after any history.

Steps are made as the scheduler makes them: what runs is extended or preempted first, then what was
swapped out comes back, then prompts are admitted; the worker executes all of it, and the block manager
forks, frees and resets between steps. Lookahead slots are filled with rubbish, as a worker may.
"""

import os
from itertools import product

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.lab.simworker.state_machines import LONG, long_test
from tests.lab.simworker.v0.array_backends import array_backend
from warmpath.lab.simworker.v0.blocks.block import NoFreeBlocksError
from warmpath.lab.simworker.v0.blocks.block_manager import BlockManager
from warmpath.lab.simworker.v0.device import AllocStatus, BlockPairs, Device
from warmpath.lab.simworker.v0.engine import Chunk, Worker
from warmpath.lab.simworker.v0.memory.cache_engine import CacheEngine, CacheShape
from warmpath.lab.simworker.v0.requests.lora import LoRARequest
from warmpath.lab.simworker.v0.requests.sequence import Sequence, SequenceGroup, SequenceStatus

SIZE = 2
SHAPE = CacheShape(num_layers=1, block_size=SIZE, num_kv_heads=1, head_size=4, dtype="fp8")
BACKEND = os.environ.get("WARMPATH_ARRAYS", "numpy")
Prompt = tuple[tuple[int, ...], int, int]
PICK = st.integers(0, 3)
# Every choice is one draw, which is what a state machine spends its time on. Of tokens there are two, so
# that sequences meet again and again.
PROMPTS = [
    (tokens, count, lora)
    for length in range(1, 8)
    for tokens in product((0, 1), repeat=length)
    for count, lora in ((1, 0), (1, 0), (1, 1), (2, 0))
]
"""Tokens, sequences of them, and the adapter."""
PROMPT = st.sampled_from([None, *PROMPTS])
DECISIONS = list(product(("extend", "pass_over", "swap_out", "recompute"), repeat=4))
SAMPLED = list(product((0, 1), repeat=3))
STEPS = settings(LONG, stateful_step_count=12)
"""Each step is as many operations as there are sequences."""
RUNNING, SWAPPED, WAITING = SequenceStatus.RUNNING, SequenceStatus.SWAPPED, SequenceStatus.WAITING


class Steps(RuleBasedStateMachine):
    """A block manager whose decisions a worker executes on a cache."""

    caching = False
    window: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.manager = BlockManager(
            SIZE, 9, 7, 0.12, sliding_window=self.window, enable_caching=self.caching
        )
        if self.window is not None:
            # The first append takes it, uncounted by can_append_slots, as in 0.9.2.
            self.manager.block_allocator.allocate_or_get_null_block()
        self.worker = Worker(CacheEngine(SHAPE, 9, 7, array_backend(BACKEND)))
        self.groups: list[SequenceGroup] = []
        self.now = 0.0
        self.next_id = 0
        self._begin_step()

    def _begin_step(self) -> None:
        self.touched: set[int] = set()
        self.chunks: list[Chunk] = []
        self.scheduled: dict[int, Sequence] = {}
        self.swap_in_pairs: BlockPairs = []
        self.swap_out_pairs: BlockPairs = []
        self.copies: BlockPairs = []

    def _new_seq(self, prompt: tuple[int, ...], lora: int) -> Sequence:
        self.next_id += 1
        request = LoRARequest(f"lora-{lora}", lora) if lora else None
        return Sequence(self.next_id, prompt, SIZE, lora_request=request)

    def _schedule(self, seq: Sequence, begin: int) -> None:
        self.scheduled[seq.seq_id] = seq
        tokens = list(seq.get_token_ids())
        table = self.manager.get_block_table(seq)
        self.chunks.append(Chunk(table, tokens, range(begin, len(tokens)), seq.extra_hash()))

    @rule(
        decisions=st.sampled_from([("extend",) * 4] * len(DECISIONS) + DECISIONS),
        lookahead=st.sampled_from([0, 0, 1, 3]),
        back=st.booleans(),
        one=PROMPT,
        another=PROMPT,
        sampled=st.sampled_from(SAMPLED),
    )
    def step(
        self,
        decisions: tuple[str, ...],
        lookahead: int,
        back: bool,
        one: Prompt | None,
        another: Prompt | None,
        sampled: tuple[int, ...],
    ) -> None:
        for decision in decisions:
            group = self._next(RUNNING)
            if group:
                getattr(self, f"_{decision}")(group, lookahead)
        group = self._next(SWAPPED)
        if back and group and not self.swap_out_pairs:
            self._swap_in(group, lookahead)
        for prompt in (one, another):
            waiting = self._next(WAITING)
            if waiting:
                self._prefill(waiting)
            elif prompt and len(self.groups) < 4:
                tokens, count, lora = prompt
                seqs = [self._new_seq(tokens, lora) for _ in range(count)]
                group = SequenceGroup(f"r{self.next_id}", seqs, 0.0)
                self.groups.append(group)
                self._prefill(group)
        self._execute(sampled)

    def _next(self, status: SequenceStatus) -> SequenceGroup | None:
        """Return the first group of a status that this step has not touched."""
        for group in self.groups:
            if group.get_seqs(status) and not any(s.seq_id in self.touched for s in group.seqs):
                self.touched.update(s.seq_id for s in group.seqs)
                return group
        return None

    def _pass_over(self, group: SequenceGroup, lookahead: int) -> None:
        pass

    def _extend(self, group: SequenceGroup, lookahead: int) -> None:
        if not self.manager.can_append_slots(group, lookahead):
            return
        for seq in group.get_seqs(RUNNING):
            self.copies += self.manager.append_slots(seq, lookahead)
            self._schedule(seq, seq.get_num_computed_tokens())
            self.manager.check()

    def _recompute(self, group: SequenceGroup, lookahead: int) -> None:
        if len(group.seqs) > 1:
            return self._swap_out(group, lookahead)
        self.manager.free(group.seqs[0])
        group.seqs[0].reset_state_for_recompute()
        group.seqs[0].status = WAITING
        return self.manager.check()

    def _swap_out(self, group: SequenceGroup, lookahead: int) -> None:  # noqa: ARG002 - as the others
        seqs = group.get_seqs(RUNNING)
        blocks = sum(len(self.manager.get_block_table(seq)) for seq in seqs)
        # What is counted leaves empty lookahead blocks out, as in 0.9.2.
        if self.manager.can_swap_out(group) and blocks <= self.manager.get_num_free_cpu_blocks():
            self.swap_out_pairs += self.manager.swap_out(group)
            for seq in seqs:
                seq.status = SWAPPED
            self.manager.check()

    def _swap_in(self, group: SequenceGroup, lookahead: int) -> None:
        seqs = group.get_seqs(SWAPPED)
        blocks = sum(len(self.manager.get_block_table(seq)) for seq in seqs)
        fits = self.manager.can_swap_in(group, lookahead)
        if fits is AllocStatus.OK and blocks <= self.manager.get_num_free_gpu_blocks():
            self.swap_in_pairs += self.manager.swap_in(group)
            for seq in seqs:
                seq.status = RUNNING
            self.manager.check()
            self._extend(group, lookahead)

    def _prefill(self, group: SequenceGroup) -> None:
        seqs = group.get_seqs(WAITING)
        self.touched.update(seq.seq_id for seq in seqs)
        cached = min(self.manager.get_num_cached_tokens(seq) for seq in seqs)
        fits = self.manager.can_allocate(group) is AllocStatus.OK
        if fits:
            try:
                self.manager.allocate(group)
            except NoFreeBlocksError:
                # Counted are the blocks of a window, but a prompt is allocated whole, as in 0.9.2.
                assert self.window is not None
                fits = False
        if not fits:
            for seq in seqs:
                self.manager.remove_seq_from_computed_blocks_tracker(seq)
            return
        for seq in seqs:
            seq.status = RUNNING
        common = self.manager.get_common_computed_block_ids(seqs)
        assert len(common) == cached // SIZE
        assert common == self.manager.get_block_table(seqs[0])[: len(common)]
        for seq in seqs:
            # A prompt found whole has its last token computed once more, for something to sample.
            self._schedule(seq, min(cached, seq.get_len() - 1))

    def _execute(self, sampled: tuple[int, ...]) -> None:
        self.now += 1
        for group in self.groups:
            self.manager.mark_blocks_as_computed(group, 1)
        for seq in self.scheduled.values():
            self.manager.access_all_blocks_in_seq(seq, self.now)
        self.worker.execute_model(self.chunks, self.swap_in_pairs, self.swap_out_pairs, self.copies)
        for chunk in self.chunks:
            self._write_ahead(chunk)
        for number, seq in enumerate(self.scheduled.values()):
            done = self.manager.block_tables[seq.seq_id].num_full_slots
            seq.update_num_computed_tokens(done - seq.get_num_computed_tokens())
            if done == seq.get_len():
                token = sampled[number % len(sampled)]
                seq.append_token_id(token)
        self._begin_step()

    def _write_ahead(self, chunk: Chunk) -> None:
        """Fill what is reserved behind a sequence's tokens with rubbish."""
        ahead = range(chunk.computed.stop, len(chunk.block_ids) * SIZE)
        if ahead:
            tokens = [*chunk.token_ids, *[9] * len(ahead)]
            self.worker.content.compute(chunk.block_ids, tokens, ahead, chunk.extra_hash)

    @precondition(lambda self: self.groups)
    @rule(at=PICK, which=PICK)
    def fork(self, at: int, which: int) -> None:
        group = self.groups[at % len(self.groups)]
        parents = group.get_seqs(RUNNING)
        if parents and len(group.seqs) < 3:
            parent = parents[which % len(parents)]
            self.next_id += 1
            child = parent.fork(self.next_id)
            group.add(child)
            self.manager.fork(parent, child)
            assert self.manager.get_block_table(child) == self.manager.get_block_table(parent)

    @precondition(lambda self: self.groups)
    @rule(at=PICK, which=PICK)
    def finish(self, at: int, which: int) -> None:
        group = self.groups[at % len(self.groups)]
        seq = group.seqs.pop(which % len(group.seqs))
        self.manager.free(seq)
        if not group.seqs:
            self.groups.remove(group)

    @rule()
    def reset(self) -> None:
        allocator = self.manager.block_allocator
        unused = not any(allocator.ref_count(block_id) for block_id in allocator.all_block_ids)
        assert self.manager.reset_prefix_cache() == (unused or not self.caching)

    @invariant()
    def nothing_is_broken(self) -> None:
        self.manager.check()

    @invariant()
    def every_sequence_reads_back(self) -> None:
        allocator = self.manager.block_allocator
        for seq in (seq for group in self.groups for seq in group.seqs):
            table = self.manager.block_tables.get(seq.seq_id)
            if table is None:
                assert seq.status is WAITING
                continue
            device = Device.CPU if seq.status is SWAPPED else Device.GPU
            ids = [
                None
                if block_id == allocator.null_block_id
                else allocator.get_physical_block_id(device, block_id)
                for block_id in table.physical_block_ids
            ]
            held = seq.get_token_ids()[: table.num_full_slots]
            assert len(held) == seq.get_num_computed_tokens()
            wrong = self.worker.content.find_wrong(device, ids, held, seq.extra_hash())
            assert list(wrong) == []


class NaiveSteps(Steps):
    """Blocks shared by forks only."""


class CachingSteps(Steps):
    """Blocks found by their content."""

    caching = True


class NaiveWindowSteps(Steps):
    """Blocks dropped behind a sliding window.

    Not beside blocks found by content, which `CacheConfig` refuses as 0.9.2's does: what is swapped out is
    hashed anew behind the null block, and so no longer knows the tokens that left the window.
    """

    window = 3


TestNaiveSteps = long_test(NaiveSteps, STEPS)
TestCachingSteps = long_test(CachingSteps, STEPS)
TestNaiveWindowSteps = long_test(NaiveWindowSteps, STEPS)
