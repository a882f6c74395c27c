"""What the manager hands out."""

import pytest

from warmpath.lab.simworker.v1.cache.kv_cache_block import KVCacheBlock, KVCacheBlocks


def block(block_id: int, digest: bytes | None = None) -> KVCacheBlock:
    one = KVCacheBlock(block_id)
    if digest is not None:
        one.set_block_hash(digest)
    return one


def test_blocks_are_added_group_by_group() -> None:
    both = KVCacheBlocks(([block(1)], ())) + KVCacheBlocks(([block(2)], [block(3)]))
    assert both.get_block_ids() == ([1, 2], [3])


def test_blocks_of_different_models_cannot_be_added() -> None:
    with pytest.raises(ValueError, match="shorter"):
        KVCacheBlocks(((), ())) + KVCacheBlocks(((),))


def test_ids_can_be_those_of_some_groups() -> None:
    blocks = KVCacheBlocks(([block(1)], [block(2)], []))
    assert blocks.get_block_ids(group_ids=(2, 0)) == ([], [1])
    assert blocks.get_block_ids(allow_none=True) == ([1], [2], [])
    assert blocks.get_block_ids(allow_none=True, group_ids=(2,)) is None
    assert KVCacheBlocks(((), ())).get_block_ids(allow_none=True) is None
    assert KVCacheBlocks(((), ())).get_block_ids() == ([], [])


def test_a_block_has_one_content_at_a_time() -> None:
    one = block(1, b"x")
    with pytest.raises(ValueError, match="block 1 has a hash already"):
        one.set_block_hash(b"y")
    one.reset_hash()
    assert (one.block_hash, one.block_hash_num_tokens) == (None, None)
    one.set_block_hash(b"y", 8)
    assert (one.block_hash, one.block_hash_num_tokens) == (b"y", 8)


def test_a_block_shows_its_neighbours_by_their_ids() -> None:
    first, second = block(1), block(2)
    first.next_free_block = second
    assert "between=None and 2" in repr(first)
