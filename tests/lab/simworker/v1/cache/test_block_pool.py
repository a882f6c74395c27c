"""The block pool and its blocks: free and held, cached and lost, announced and not."""

from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.lab.simworker.state_machines import long_test
from tests.lab.simworker.v1.small_cache import SIZE, Announced, request
from warmpath.lab.simworker.v1.cache.block_pool import BlockPool
from warmpath.lab.simworker.v1.cache.kv_cache_block import FreeKVCacheBlockQueue, KVCacheBlock
from warmpath.lab.simworker.v1.cache.kv_cache_event import BlockStored
from warmpath.lab.simworker.v1.hashing.block_hash import (
    make_block_hash_with_group_id,
    maybe_convert_block_hash,
)
from warmpath.lab.simworker.v1.hashing.extra_keys import LoRARequest
from warmpath.lab.simworker.v1.requests.request import Request


def pool(num_gpu_blocks: int = 9, hash_block_size: int = SIZE, **more: bool) -> BlockPool:
    return BlockPool(num_gpu_blocks, True, hash_block_size, True, **more)


def cached(one_pool: BlockPool, one: Request, count: int) -> list[KVCacheBlock]:
    """Take blocks and cache them as the request's first."""
    blocks = one_pool.get_new_blocks(count)
    one_pool.cache_full_blocks(one, blocks, 0, count, SIZE, 0)
    return blocks


@pytest.mark.parametrize(("blocks", "size", "name"), [(0, 4, "num_gpu_blocks"), (4, 0, "hash_block_size")])  # fmt: skip
def test_sizes_below_one_are_refused(blocks: int, size: int, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: 0, at least 1"):
        BlockPool(blocks, True, size)


def test_an_event_names_parent_tokens_adapter_and_bare_extra_keys() -> None:
    one = pool()
    first = request(
        "a",
        range(12),
        lora_request=LoRARequest("tuned", 5, "path"),
        cache_salt="salt",
        session_id="s",
    )
    blocks = one.get_new_blocks(3)
    one.cache_full_blocks(first, blocks, 0, 1, SIZE, 2)
    one.cache_full_blocks(first, blocks, 1, 3, SIZE, 2)
    hashes = [maybe_convert_block_hash(digest) for digest in first.block_hashes]
    begin, rest = one.take_events()
    assert begin == BlockStored(
        hashes[:1], None, [0, 1, 2, 3], SIZE, 5, "GPU", "tuned", [("tuned", "salt")], 2,
        session_id="s",
    )  # fmt: skip
    assert rest == BlockStored(
        hashes[1:], hashes[0], [*range(4, 12)], SIZE, 5, "GPU", "tuned",
        [("tuned",), ("tuned",)], 2, session_id="s",
    )  # fmt: skip


def test_a_block_cannot_be_cached_twice() -> None:
    one = pool()
    first = request("a", range(4))
    blocks = cached(one, first, 1)
    with pytest.raises(ValueError, match="block 1 is cached already"):
        one.cache_full_blocks(first, blocks, 0, 1, SIZE, 0)


def test_caching_a_part_says_under_which_key_it_is_found() -> None:
    one = pool(hash_block_size=2)
    first = request("a", range(3), 2)
    blocks = one.get_new_blocks(1)
    key = make_block_hash_with_group_id(first.block_hashes[0], 5)
    assert one.cache_partial_block(first, blocks[0], 2, 5, 4) == key
    assert one.cache_partial_block(first, blocks[0], 2, 5, 4) == key
    assert one.cache_partial_block(first, one.null_block, 2, 5, 4) is None


@pytest.mark.parametrize(("tokens", "block_size"), [(0, 4), (3, 4), (4, 4), (2, 3)])
def test_a_part_without_a_hash_is_refused(tokens: int, block_size: int) -> None:
    one = pool(hash_block_size=2)
    block = one.get_new_blocks(1)[0]
    with pytest.raises(AssertionError, match=f"num_tokens: {tokens} of 2 hashed tokens"):
        one.cache_partial_block(request("a", range(3), 2), block, tokens, 0, block_size)
    assert block.block_hash is None


def test_an_unknown_block_is_refused_before_any_is_evicted() -> None:
    one = pool(4)
    first = request("a", range(4))
    cached(one, first, 1)
    with pytest.raises(ValueError, match="block_ids: 4, must be below 4"):
        one.evict_blocks([1, 4])
    assert one.get_cached_block(first.block_hashes[0], [0]) is not None


def test_found_blocks_are_announced_on_request_without_a_change() -> None:
    one = pool()
    first = request("a", range(8))
    one.emit_cached_block_events(first, 0, SIZE, 1)
    assert one.take_events() == []
    one.emit_cached_block_events(first, 2, SIZE, 1)
    (event,) = one.take_events()
    assert isinstance(event, BlockStored)
    assert event.block_hashes == [maybe_convert_block_hash(d) for d in first.block_hashes]
    assert (event.parent_block_hash, event.token_ids, event.group_idx) == (None, [*range(8)], 1)
    assert len(one.cached_block_hash_to_block) == 0


class AnyUse(RuleBasedStateMachine):
    """Blocks are taken, cached, shared, freed and lost; counts and events are kept beside."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = pool(7, 2)
        self.held: list[KVCacheBlock] = []
        self.announced = Announced()
        self.requests = [request(str(at), [at % 2, *range(7)], 2) for at in range(3)]

    @rule(count=st.integers(0, 4))
    def take(self, count: int) -> None:
        if count > self.pool.get_num_free_blocks():
            with pytest.raises(ValueError, match="Cannot get"):
                self.pool.get_new_blocks(count)
            return
        self.held += self.pool.get_new_blocks(count)

    @precondition(lambda self: any(block.block_hash is None for block in self.held))
    @rule(which=st.integers(0, 2), index=st.integers(0, 1), group=st.integers(0, 1))
    def cache(self, which: int, index: int, group: int) -> None:
        block = next(block for block in self.held if block.block_hash is None)
        blocks = [self.pool.null_block] * index + [block]
        self.pool.cache_full_blocks(self.requests[which], blocks, index, index + 1, 4, group)

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 2), part=st.integers(1, 3), block=st.integers(0, 9))
    def cache_part(self, which: int, part: int, block: int) -> None:
        block_of = self.held[block % len(self.held)]
        self.pool.cache_partial_block(self.requests[which], block_of, part * 2, 0, 4)

    @rule(which=st.integers(0, 2), at=st.integers(0, 3), group=st.integers(0, 1))
    def share(self, which: int, at: int, group: int) -> None:
        found = self.pool.get_cached_block(self.requests[which].block_hashes[at], [group])
        if found is not None:
            self.pool.touch(found)
            self.held += found

    @rule(count=st.integers(1, 5))
    def free(self, count: int) -> None:
        self.held, freed = self.held[count:], self.held[:count]
        self.pool.free_blocks(reversed(freed))

    @rule(block_id=st.integers(1, 6))
    def evict(self, block_id: int) -> None:
        self.pool.evict_blocks([block_id])

    @rule()
    def reset(self) -> None:
        assert self.pool.reset_prefix_cache() == (not self.held)

    @invariant()
    def counts_are_kept(self) -> None:
        self.pool.check()
        counts = Counter(block.block_id for block in self.held)
        assert [block.ref_cnt for block in self.pool.blocks[1:]] == [
            counts[at] for at in range(1, 7)
        ]
        assert self.pool.get_num_free_blocks() == 6 - len(counts)

    @invariant()
    def events_tell_what_is_cached(self) -> None:
        self.announced.check(self.pool.take_events(), self.pool)


TestAnyUse = long_test(AnyUse)


def test_a_block_has_one_content_at_a_time() -> None:
    one = KVCacheBlock(1)
    one.set_block_hash(b"x")
    with pytest.raises(ValueError, match="block 1 has a hash already"):
        one.set_block_hash(b"y")
    one.reset_hash()
    assert (one.block_hash, one.block_hash_num_tokens) == (None, None)
    one.set_block_hash(b"y", 8)
    assert (one.block_hash, one.block_hash_num_tokens) == (b"y", 8)


def new_blocks(count: int) -> list[KVCacheBlock]:
    return [KVCacheBlock(block_id) for block_id in range(count)]


def test_more_than_there_is_cannot_be_taken() -> None:
    queue = FreeKVCacheBlockQueue(new_blocks(1))
    with pytest.raises(ValueError, match="2 blocks needed, 1 are free"):
        queue.popleft_n(2)
    queue.popleft()
    with pytest.raises(ValueError, match="No free blocks available"):
        queue.popleft()
    queue.check()


def test_a_block_that_is_not_free_cannot_be_removed() -> None:
    all_blocks = new_blocks(2)
    queue = FreeKVCacheBlockQueue(all_blocks)
    taken = queue.popleft()
    with pytest.raises(RuntimeError, match="block_id=0"):
        queue.remove(taken)
