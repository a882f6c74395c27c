"""The engine, with a tier below the cache or without, whatever is asked of it in whatever order."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.lab.simworker.state_machines import LONG
from warmpath.lab.simworker.engine import Generation
from warmpath.lab.simworker.v1.assemble import KVGroup, OffloadConfig, build_engine, kv_cache_config
from warmpath.lab.simworker.v1.cache.kv_cache_event import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    CacheEvent,
)
from warmpath.lab.simworker.v1.scheduling.scheduler_config import SchedulerConfig

PROMPTS = [[start * 50 + at // 3 for at in range(40)] for start in range(3)]


class Machine(RuleBasedStateMachine):
    """Requests are served whole, blocks are announced as often as they are lost."""

    @initialize(
        tier=st.sampled_from([0, 0, 4, 30]), policy=st.sampled_from(["fcfs", "priority"]),
        budget=st.sampled_from([6, 40]),
    )  # fmt: skip
    def start(self, tier: int, policy: str, budget: int) -> None:
        self.engine = build_engine(
            kv_cache_config(11, [KVGroup(4)]),
            SchedulerConfig(
                max_model_len=40, max_num_seqs=4, max_num_batched_tokens=budget, policy=policy
            ),
            vocab_size=40,
            offload=OffloadConfig(tier, bytes_per_block=1000, bandwidth=2e4) if tier else None,
        )
        self.open: dict[str, Generation] = {}
        self.answers: dict[str, list[int]] = {}
        self.lasts: list[str] = []
        self.made = 0
        self.begun = False
        self.stored: dict[str | None, dict[object, int]] = {"GPU": {}, "CPU": {}}

    @rule(
        prompt=st.sampled_from(PROMPTS), length=st.integers(1, 24), tokens=st.integers(1, 9),
        priority=st.integers(0, 1),
    )  # fmt: skip
    def submit(self, prompt: list[int], length: int, tokens: int, priority: int) -> None:
        name = str(self.made)
        self.made += 1
        answer = self.answers[name] = []

        def take(new: list[int], last: bool) -> None:
            assert name in self.open
            answer.extend(new)
            if last:
                del self.open[name]
                self.lasts.append(name)
                assert len(answer) == tokens

        self.open[name] = Generation(name, prompt[:length], tokens, take, priority=priority)
        self.engine.submit(self.open[name])

    @precondition(lambda self: not self.begun and self.engine.busy)
    @rule(horizon=st.sampled_from([0.0, 0.1, 5.0]))
    def begin(self, horizon: float) -> None:
        assert self.engine.begin_step(horizon) >= 0
        self.leaping = horizon > 0
        self.begun = True

    @precondition(lambda self: self.begun)
    @rule()
    def finish(self) -> None:
        self.hear(self.engine.end_step())
        self.begun = False
        for one in self.open.values():
            assert one.num_cached_tokens <= one.num_prompt_tokens

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.open)))
        self.engine.cut_step(0.0)
        self.engine.abort(name)
        self.engine.abort(name)
        del self.open[name]

    @rule()
    def reset(self) -> None:
        assert self.engine.reset_prefix_cache() == (self.engine.load().kv_cache_usage == 0)

    def hear(self, events: list[CacheEvent]) -> None:
        for event in events:
            match event:
                case BlockStored():
                    counts = self.stored[event.medium]
                    for block_hash in event.block_hashes:
                        counts[block_hash] = counts.get(block_hash, 0) + 1
                case BlockRemoved():
                    counts = self.stored[event.medium]
                    for block_hash in event.block_hashes:
                        assert counts[block_hash] > 0
                        counts[block_hash] -= 1
                case AllBlocksCleared():
                    self.stored["GPU"].clear()

    @invariant()
    def holds(self) -> None:
        self.engine.check()
        load = self.engine.load()
        assert load.running + load.waiting == len(self.open)
        assert load.prefix_cache_hits <= load.prefix_cache_queries

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        if self.begun:
            self.finish()
        for _ in range(500):
            if not self.engine.busy:
                break
            self.begin(0.0)
            self.finish()
        self.engine.check()
        # An engine with nothing to do keeps what a reset has to tell.
        self.hear(self.engine.scheduler.take_events())
        assert not self.open
        assert self.engine.load().kv_cache_usage == 0
        cached = self.engine.manager.block_pool.cached_block_hash_to_block.items()
        assert sum(self.stored["GPU"].values()) == sum(1 for _ in cached)


TestMachine = Machine.TestCase
TestMachine.settings = LONG
