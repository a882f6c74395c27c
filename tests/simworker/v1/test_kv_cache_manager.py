"""The manager and its pool: no block leaked, lost or shared wrongly, in any history."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from simworker.v1.block_hash import none_hash
from simworker.v1.kv_cache_event import AllBlocksCleared, BlockRemoved, BlockStored
from simworker.v1.kv_cache_manager import KVCacheManager
from simworker.v1.request import Hasher, Request

SIZE = 4
HASHER = Hasher(SIZE, none_hash())


def request(name: str, tokens: list[int], **options: object) -> Request:
    return Request(name, tokens, hasher=HASHER, max_tokens=100, **options)  # type: ignore[arg-type]


def admit(manager: KVCacheManager, one: Request) -> int:
    """Look a request up and give it all its blocks; return the tokens found cached."""
    hits, cached = manager.get_computed_blocks(one)
    assert manager.allocate_slots(one, one.num_tokens - cached, cached, hits) is not None
    one.num_computed_tokens = one.num_tokens
    return cached


def test_a_prompt_seen_before_is_found_but_for_its_last_block() -> None:
    manager = KVCacheManager(20, SIZE, 1000)
    first = request("a", list(range(12)))
    assert admit(manager, first) == 0
    manager.free(first)
    assert admit(manager, request("b", list(range(12)))) == 8
    assert admit(manager, request("c", list(range(13)))) == 12


def test_a_prompt_that_ends_on_a_boundary_announces_its_last_block_twice() -> None:
    manager = KVCacheManager(20, SIZE, 1000)
    for name in "ab":
        one = request(name, list(range(8)))
        admit(manager, one)
        manager.free(one)
    first, second = manager.take_events()
    assert isinstance(first, BlockStored)
    assert isinstance(second, BlockStored)
    assert second.block_hashes == first.block_hashes[1:]
    assert second.parent_block_hash == first.block_hashes[0]


def test_the_tail_of_what_was_freed_first_is_evicted_first() -> None:
    manager = KVCacheManager(5, SIZE, 1000)
    one = request("a", list(range(16)))
    admit(manager, one)
    manager.free(one)
    manager.take_events()
    admit(manager, request("b", list(range(50, 58))))
    removed = [event for event in manager.take_events() if isinstance(event, BlockRemoved)]
    assert [event.block_hash for event in removed] == one.block_hashes[:1:-1]


def test_blocks_without_content_are_used_before_cached_ones() -> None:
    manager = KVCacheManager(4, SIZE, 1000)
    one = request("a", list(range(6)))
    admit(manager, one)
    manager.free(one)
    manager.take_events()
    admit(manager, request("b", [90, 91, 92, 93, 94]))
    assert not [event for event in manager.take_events() if isinstance(event, BlockRemoved)]


def test_salts_adapters_and_plain_requests_do_not_share() -> None:
    manager = KVCacheManager(50, SIZE, 1000)
    variants: list[dict[str, object]] = [
        {}, {"cache_salt": "a"}, {"cache_salt": "b"}, {"lora_name": "l"},
        {"lora_name": "l", "cache_salt": "a"},
    ]  # fmt: skip
    for number, options in enumerate(variants):
        assert admit(manager, request(f"first-{number}", list(range(9)), **options)) == 0
    for number, options in enumerate(variants):
        assert admit(manager, request(f"again-{number}", list(range(9)), **options)) == 8


def test_a_reset_while_blocks_are_in_use_does_nothing() -> None:
    manager = KVCacheManager(20, SIZE, 1000)
    one = request("a", list(range(8)))
    admit(manager, one)
    assert not manager.reset_prefix_cache()
    manager.free(one)
    assert manager.reset_prefix_cache()
    assert isinstance(manager.take_events()[-1], AllBlocksCleared)
    assert admit(manager, request("b", list(range(8)))) == 0


class AnyHistory(RuleBasedStateMachine):
    """Requests that come, grow, are preempted and go, over a pool that is too small."""

    def __init__(self) -> None:
        super().__init__()
        self.manager = KVCacheManager(9, SIZE, 60)
        self.running: list[Request] = []
        self.number = 0
        self.announced: dict[bytes, int] = {}

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=24))
    def admit(self, tokens: list[int]) -> None:
        self.number += 1
        one = request(str(self.number), tokens)
        hits, cached = self.manager.get_computed_blocks(one)
        assert cached < one.num_tokens
        free = self.manager.block_pool.get_num_free_blocks()
        given = self.manager.allocate_slots(one, one.num_tokens - cached, cached, hits)
        if given is None:
            assert self.manager.block_pool.get_num_free_blocks() == free
            return
        one.num_computed_tokens = one.num_tokens
        self.running.append(one)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 9), token=st.integers(0, 1))
    def grow(self, which: int, token: int) -> None:
        one = self.running[which % len(self.running)]
        one.append(token)
        if self.manager.allocate_slots(one, 1) is None:
            self.running.remove(one)
            self.manager.free(one)
            return
        one.num_computed_tokens += 1

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 9))
    def end(self, which: int) -> None:
        self.manager.free(self.running.pop(which % len(self.running)))

    @rule()
    def reset(self) -> None:
        assert self.manager.reset_prefix_cache() == (not self.running)

    @invariant()
    def nothing_is_leaked(self) -> None:
        self.manager.check()

    @invariant()
    def events_tell_what_is_cached(self) -> None:
        for event in self.manager.take_events():
            if isinstance(event, BlockStored):
                for digest in event.block_hashes:
                    self.announced[digest] = self.announced.get(digest, 0) + 1
            elif isinstance(event, BlockRemoved):
                self.announced[event.block_hash] -= 1
            else:
                self.announced.clear()
        cached: dict[bytes, int] = {}
        for block in self.manager.block_pool.blocks:
            if block.block_hash is not None:
                cached[block.block_hash] = cached.get(block.block_hash, 0) + 1
        assert {digest: count for digest, count in self.announced.items() if count} == cached


AnyHistory.TestCase.settings = settings(max_examples=150, deadline=None)
TestAnyHistory = AnyHistory.TestCase
