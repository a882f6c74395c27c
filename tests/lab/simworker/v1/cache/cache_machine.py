"""The rules that state machines over one KV cache manager share, whatever its groups."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from warmpath.lab.simworker.v1.cache.kv_cache_manager import KVCacheManager
from warmpath.lab.simworker.v1.requests.request import Request, RequestStatus


class CacheMachine(RuleBasedStateMachine):
    """Requests come, are preempted, come again and end; blocks are evicted and the cache is reset."""

    cache: KVCacheManager

    def __init__(self) -> None:
        super().__init__()
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self.number = 0

    def start(self, one: Request, chunk: int) -> None:
        """Let a request run, or wait if it does not fit."""
        raise NotImplementedError

    @precondition(lambda self: self.waiting)
    @rule(chunk=st.integers(1, 20))
    def come_again(self, chunk: int) -> None:
        self.start(self.waiting.pop(0), chunk)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 9))
    def preempt(self, which: int) -> None:
        one = self.running.pop(which % len(self.running))
        self.cache.free(one)
        one.num_computed_tokens = one.num_in_flight_tokens = 0
        one.status = RequestStatus.PREEMPTED
        self.waiting.append(one)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 9))
    def end(self, which: int) -> None:
        self.cache.free(self.running.pop(which % len(self.running)))

    @rule(block=st.integers(0, 99))
    def evict(self, block: int) -> None:
        self.cache.evict_blocks([1 + block % (len(self.cache.block_pool.blocks) - 1)])

    @rule()
    def reset(self) -> None:
        assert self.cache.reset_prefix_cache() == (not self.running)
