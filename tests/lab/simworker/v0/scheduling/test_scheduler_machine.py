"""The scheduler and its block manager under random requests, forks and aborts."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.lab.simworker.state_machines import long_test
from tests.lab.simworker.v0.groups import append, fork, make_group, make_scheduler
from warmpath.lab.simworker.v0.requests.sequence import SequenceGroup, SequenceStatus
from warmpath.lab.simworker.v0.scheduling.scheduler import Scheduler
from warmpath.lab.simworker.v0.scheduling.scheduler_outputs import SchedulerOutputs

MAX_NUM_SEQS = 4
MAX_MODEL_LEN = 14
GPU_BLOCKS = 9
CPU_BLOCKS = 100
"""Room for all that can ever be swapped, so that nothing fails for want of it."""


class SchedulerMachine(RuleBasedStateMachine):
    """Steps keep to the budget, memory is neither leaked nor lost, and all requests end."""

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        chunked = data.draw(st.booleans(), "chunked")
        policy = "fcfs" if chunked else data.draw(st.sampled_from(["fcfs", "priority"]))
        modes: list[str | None] = [None, "recompute"]
        # A prefill swapped out between two chunks returns only where its rest fits into one step.
        if policy == "fcfs" and not chunked:
            modes.append("swap")
        limits: dict[str, Any] = {
            "enable_chunked_prefill": chunked,
            "policy": policy,
            "preemption_mode": data.draw(st.sampled_from(modes)),
            "max_num_batched_tokens": data.draw(st.integers(6, 12)) if chunked else MAX_MODEL_LEN,
            "num_lookahead_slots": data.draw(st.sampled_from([0, 2])),
            "max_num_partial_prefills": data.draw(st.integers(1, 2)) if chunked else 1,
        }
        self.scheduler: Scheduler = make_scheduler(
            gpu=GPU_BLOCKS,
            cpu=CPU_BLOCKS,
            caching=data.draw(st.booleans(), "caching"),
            loras=data.draw(st.integers(0, 1)),
            max_num_seqs=MAX_NUM_SEQS,
            max_model_len=MAX_MODEL_LEN,
            **limits,
        )
        self.may_fork = not chunked and limits["preemption_mode"] != "recompute"
        self.groups: list[SequenceGroup] = []
        self.ignored: list[SequenceGroup] = []

    @rule(
        length=st.integers(1, MAX_MODEL_LEN - 4),
        own=st.booleans(),
        lora=st.integers(0, 2),
        priority=st.integers(0, 2),
    )
    def add(self, length: int, own: bool, lora: int, priority: int) -> None:
        number = len(self.groups) * 10
        prompt = length if own else list(range(length))
        lora = lora if self.scheduler.lora_enabled else 0
        group = make_group(str(number), prompt, lora=lora, priority=priority, arrival=number)
        self.groups.append(group)
        self.scheduler.add_seq_group(group)

    @precondition(lambda self: self.may_fork and self.scheduler.running)
    @rule(pick=st.integers(0, 10))
    def fork(self, pick: int) -> None:
        group = self.scheduler.running[pick % len(self.scheduler.running)]
        sequences = sum(each.get_max_num_running_seqs() for each in self.scheduler.running)
        first = group.first_seq
        # What is forked while it must still write to its last block could outgrow the memory alone.
        alone = group.num_seqs() < 2 and not group.is_prefill() and not first.is_finished()
        if alone and sequences < MAX_NUM_SEQS:
            fork(self.scheduler, group, first.seq_id + 1)

    @precondition(lambda self: self.groups)
    @rule(pick=st.integers(0, 30))
    def abort(self, pick: int) -> None:
        group = self.groups[pick % len(self.groups)]
        self.scheduler.abort_seq_group(group.request_id)
        assert group.is_finished() or group not in self.scheduler.groups()

    @precondition(lambda self: self.scheduler.running)
    @rule(pick=st.integers(0, 10))
    def stop_one(self, pick: int) -> None:
        seqs = self.scheduler.running[pick % len(self.scheduler.running)].seqs
        unfinished = [seq for seq in seqs if not seq.is_finished()]
        unfinished[pick % len(unfinished)].status = SequenceStatus.FINISHED_STOPPED
        self.scheduler.free_finished_seq_groups()

    @rule()
    def step(self) -> None:
        metadata, outputs, _ = self.scheduler.schedule()
        self.ignored += outputs.ignored_seq_groups
        self.check_step(outputs)
        for scheduled, told in zip(outputs.scheduled_seq_groups, metadata, strict=True):
            group = scheduled.seq_group
            assert set(told.block_tables) == {
                s.seq_id for s in group.get_seqs(SequenceStatus.RUNNING)
            }
            group.update_num_computed_tokens(scheduled.token_chunk_size)
            if told.do_sample:
                append(group, 1000 + group.first_seq.get_len())
            for seq in group.get_seqs(SequenceStatus.RUNNING):
                if seq.get_len() == MAX_MODEL_LEN:
                    seq.status = SequenceStatus.FINISHED_LENGTH_CAPPED
        self.scheduler.free_finished_seq_groups()

    def check_step(self, outputs: SchedulerOutputs) -> None:
        config = self.scheduler.scheduler_config
        groups = [scheduled.seq_group for scheduled in outputs.scheduled_seq_groups]
        assert sum(group.get_max_num_running_seqs() for group in groups) <= MAX_NUM_SEQS
        computed = 0
        for scheduled in outputs.scheduled_seq_groups:
            running = scheduled.seq_group.num_seqs(SequenceStatus.RUNNING)
            assert running == scheduled.seq_group.get_max_num_running_seqs()
            computed += scheduled.token_chunk_size * running
        assert computed == outputs.num_batched_tokens
        if not self.scheduler.cache_config.enable_prefix_caching:
            assert computed <= config.max_num_batched_tokens
        # With chunks 0.9.2 forgets the adapters of running groups that a step has no tokens for.
        if self.scheduler.lora_config is not None and not config.enable_chunked_prefill:
            assert outputs.num_loras <= self.scheduler.lora_config.max_loras
        if not config.enable_chunked_prefill:
            assert outputs.num_prefill_groups in {0, len(groups)}

    @invariant()
    def queues_and_blocks_agree(self) -> None:
        if hasattr(self, "scheduler"):
            self.scheduler.check()

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        for _ in range(3000):
            if not list(self.scheduler.groups()):
                break
            self.step()
        assert not list(self.scheduler.groups())
        self.scheduler.check()
        assert all(group.is_finished() for group in self.groups)
        assert not self.ignored
        manager = self.scheduler.block_manager
        assert not manager.block_tables
        assert manager.get_num_free_gpu_blocks() == GPU_BLOCKS
        assert manager.get_num_free_cpu_blocks() == CPU_BLOCKS


TestScheduler = long_test(SchedulerMachine)
