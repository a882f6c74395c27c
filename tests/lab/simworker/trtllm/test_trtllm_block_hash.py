"""Block hashes and salt ids against the values that TensorRT-LLM's own tests pin."""

import pytest

from warmpath.lab.simworker.trtllm.blocks.block_key import BlockKey, hash_block_key
from warmpath.lab.simworker.trtllm.blocks.cache_salt import blake3, get_cache_salt_id

TOKENS = (1, 2, 3, 4)
FIRST = 924206229973855
"""Of TOKENS; pinned in TensorRT-LLM's test_kv_cache_event_manager.py, as is their child's."""


def test_hashes_of_tokens_are_tensorrt_llms() -> None:
    assert hash_block_key(BlockKey(TOKENS)) == FIRST
    assert hash_block_key(BlockKey((5, 6)), FIRST) == 6875034662206558884


@pytest.mark.parametrize(
    ("key", "parent", "value"),
    [
        (BlockKey(TOKENS, cache_salt_id=123), 0, 6280297290684427985),
        (BlockKey(TOKENS, lora_task_id=42), 0, 12119090535462750509),
        (BlockKey(TOKENS, extra_ids=(10, 20, 30, 40)), 0, 3972185358610136635),
        (BlockKey(TOKENS, extra_keys=((bytes(i * 7 for i in range(32)), 5),)), 0, 16629067467913666129),
        (BlockKey((151936, 2**31 - 1)), 2**64 - 1, 12981018465568578943),
    ],
    ids=["salt", "adapter", "extra ids", "multimodal", "large"],
)  # fmt: skip
def test_the_other_parts_of_a_key_hash_as_the_compiled_source_does(
    key: BlockKey, parent: int, value: int
) -> None:
    assert hash_block_key(key, parent) == value


def test_salt_ids_are_tensorrt_llms() -> None:
    assert get_cache_salt_id("abc") == 3697813978277427044


def test_blake3_is_right_for_no_byte_and_for_many() -> None:
    assert blake3(b"").hex().startswith("af1349b9f5f9a1a6a0404dea36dcc949")
    # The reference implementation's test vectors: byte i is i mod 251.
    data = bytes(i % 251 for i in range(1024))
    assert blake3(data).hex().startswith("42214739f095a406f3fc83deb889744a")
    assert blake3(data[:65]).hex().startswith("de1e5fa0be70df6d2be8fffd0e99ceaa")


def test_a_salt_over_one_chunk_is_refused() -> None:
    with pytest.raises(ValueError, match="cache_salt has 1025 bytes"):
        get_cache_salt_id("x" * 1025)


def test_everything_in_a_key_changes_the_hash() -> None:
    key = {"tokens": (1, 2), "lora_task_id": None, "cache_salt_id": None, "extra_keys": ()}
    changes: list[dict[str, object]] = [
        {}, {"tokens": (2, 1)}, {"tokens": (1,)}, {"extra_ids": (0, 0)}, {"extra_ids": (0, 1)},
        {"lora_task_id": 0}, {"lora_task_id": 1}, {"cache_salt_id": 0}, {"cache_salt_id": 1},
        {"extra_keys": ((bytes(32), 0),)}, {"extra_keys": ((bytes(32), 1),)},
        {"extra_keys": ((bytes(31) + b"\1", 0),)},
    ]  # fmt: skip
    hashes = [hash_block_key(BlockKey(**(key | change))) for change in changes]  # type: ignore[arg-type]
    assert len(set(hashes)) == len(changes)


def test_a_salt_counts_in_the_first_block_only() -> None:
    plain, salted = BlockKey((1, 2)), BlockKey((1, 2), cache_salt_id=7)
    assert hash_block_key(plain, 5) == hash_block_key(salted, 5)
    assert hash_block_key(plain) != hash_block_key(salted)


def test_tokens_match_only_where_all_else_is_equal() -> None:
    key = BlockKey((1, 2, 3))
    assert key.num_matching_tokens(BlockKey((1, 2, 4, 5))) == 2
    assert key.num_matching_tokens(BlockKey((1, 2))) == 2
    for other in (
        BlockKey((1, 2, 3), lora_task_id=1),
        BlockKey((1, 2, 3), cache_salt_id=1),
        BlockKey((1, 2, 3), extra_keys=((bytes(32), 0),)),
        BlockKey((1, 2, 3), extra_ids=(0, 0, 0)),
    ):
        assert key.num_matching_tokens(other) == 0
    with_ids = BlockKey((1, 2, 3), extra_ids=(0, 0, 0))
    assert with_ids.num_matching_tokens(BlockKey((1, 2, 3), extra_ids=(0, 9, 0))) == 1
