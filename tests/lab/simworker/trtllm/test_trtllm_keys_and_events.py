"""Hashes and salts that TensorRT-LLM pins, what a request asks to be kept, and the events' buffer."""

import pytest

from warmpath.lab.simworker.trtllm.blocks.block import KVCacheBlock, Slot
from warmpath.lab.simworker.trtllm.blocks.block_key import (
    BlockKey,
    blake3,
    get_cache_salt_id,
    hash_block_key,
)
from warmpath.lab.simworker.trtllm.blocks.retention import KvCacheRetentionConfig
from warmpath.lab.simworker.trtllm.blocks.retention import TokenRangeRetentionConfig as Range
from warmpath.lab.simworker.trtllm.blocks.reuse_tree import ReuseTree
from warmpath.lab.simworker.trtllm.events.event_manager import KVCacheEventManager
from warmpath.lab.simworker.trtllm.events.kv_cache_event import KVCacheRemovedData, serialise

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


@pytest.mark.parametrize(
    ("ranges", "block_size", "length", "expected"),
    [
        ([], 4, 9, [None, None, None]),
        ([(0, 8, 80), (8, 16, 50)], 8, 32, [80, 50, None, None]),
        ([(0, 7, 80), (7, 15, 30)], 4, 15, [80, 80, 30, 30]),
        ([(0, 1, 80), (1, 2, 5)], 4, 16, [80, None, None, None]),
        ([(0, 16, 80)], 32, 24, [80]),
        ([(0, 9, 80), (9, 17, 30)], 8, 24, [80, 80, 30]),
        ([(17, None, 50), (0, 8, 80)], 8, 32, [80, None, None, 50]),
        ([(15, 25, 80)], 8, 4, [None]),
        ([(1, None, 80)], 8, 16, [None, 80]),
    ],
)
def test_the_range_of_its_first_token_decides_for_a_block(
    ranges: list[tuple[int, int | None, int]],
    block_size: int,
    length: int,
    expected: list[int | None],
) -> None:
    config = KvCacheRetentionConfig([Range(*one) for one in ranges])
    found = config.get_per_block_retention(block_size, length)
    assert [one.priority for one in found] == expected


def test_durations_go_with_their_range() -> None:
    config = KvCacheRetentionConfig([Range(0, 4, 80, 1000), Range(4, 8, 60)])
    assert [one.duration_ms for one in config.get_per_block_retention(4, 12)] == [1000, None, None]


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ([(0, None, 80), (64, 128, 80)], "only the last range may be open"),
        ([(0, 64, 80), (64, 32, 80)], "token_end 32"),
        ([(0, 64, 80), (30, 128, 80)], "must not overlap"),
        ([(-1, 64, 80)], "token_start -1"),
        ([(0, 64, 101)], "priority is 101; it must be 0 to 100"),
        ([(0, 64, 50, -1)], "-1 ms; it must be 0 or more"),
    ],
)
def test_ranges_that_make_no_sense_are_refused(ranges: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KvCacheRetentionConfig([Range(*one) for one in ranges])


def test_a_priority_of_decoding_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="decode_priority is -1"):
        KvCacheRetentionConfig(decode_priority=-1)


def chain(*keys: BlockKey) -> list[KVCacheBlock]:
    """Return blocks of four tokens, each stored under the one before."""
    tree = ReuseTree(4)
    parent, blocks = tree.root, []
    for number, key in enumerate(keys):
        block = KVCacheBlock(number, Slot(0, number))
        tree.insert(parent, key, block)
        blocks.append(block)
        parent = block
    return blocks


def test_nothing_can_be_fetched_before_the_iteration_ends_and_then_once() -> None:
    manager = KVCacheEventManager(8)
    manager.enqueue_created_event((4, 2), 64)
    assert manager.get_events() == []
    assert [event.event_id for event in manager.flush()] == [0]
    assert [event.event_id for event in manager.get_events()] == [0]
    assert manager.get_events() == []
    assert manager.flush() == []


def test_a_full_buffer_gives_up_the_oldest_and_leaves_a_hole() -> None:
    manager = KVCacheEventManager(2)
    for window in (1, 2, 3):
        manager.enqueue_created_event((window,), window)
        manager.flush()
        manager.check()
    assert [event.event_id for event in manager.get_events()] == [1, 2]
    for window in range(5):
        manager.enqueue_created_event((1,), window)
    manager.flush()
    assert [event.event_id for event in manager.get_events()] == [6, 7]


def test_removals_in_a_row_and_of_one_window_are_one_event() -> None:
    manager = KVCacheEventManager(8)
    one, two = chain(BlockKey((1, 2, 3, 4)), BlockKey((5, 6)))
    manager.enqueue_removed_event(two, 64)
    manager.enqueue_removed_event(one, 64)
    manager.enqueue_removed_event(one, 8)
    manager.enqueue_level_event(one, 0, 1, 8)
    manager.enqueue_removed_event(one, 8)
    manager.flush()
    manager.enqueue_removed_event(two, 8)
    manager.flush()
    found = [
        (event.event_id, event.window_size, event.data.block_hashes)
        for event in manager.get_events()
        if isinstance(event.data, KVCacheRemovedData)
    ]
    assert found == [
        (0, 64, [two.hash, one.hash]), (1, 8, [one.hash]), (3, 8, [one.hash]), (4, 8, [two.hash]),
    ]  # fmt: skip


def test_events_are_serialised_as_trtllm_serve_does() -> None:
    manager = KVCacheEventManager(8, attention_dp_rank=1)
    digest = bytes(range(32))
    first, second = chain(
        BlockKey((1, 2, 3, 4)),
        BlockKey((5, 6), extra_ids=(0, 7), lora_task_id=42, extra_keys=((digest, 3),)),
    )
    second.slot = Slot(1, 0)
    manager.enqueue_created_event((10, 4), 64)
    manager.enqueue_stored_event([first], 64)
    manager.enqueue_stored_event([second], 64)
    manager.enqueue_stored_event([], 64)
    manager.enqueue_level_event(first, 0, 1, 64)
    manager.enqueue_priority_event(first, 80, 64)
    manager.enqueue_removed_event(first, 64)
    manager.flush()
    events = [serialise(event) for event in manager.get_events()]
    assert [list(event) for event in events] == [
        ["event_id", "data", "window_size", "attention_dp_rank"]
    ] * 6
    assert [event["data"] for event in events] == [
        {"type": "created", "num_blocks_per_cache_level": [10, 4]},
        {
            "type": "stored",
            "parent_hash": None,
            "blocks": [
                {
                    "type": "stored_block",
                    "block_hash": 924206229973855,
                    "tokens": [
                        {"type": "unique_token", "token_id": token, "token_extra_id": 0}
                        for token in (1, 2, 3, 4)
                    ],
                    "cache_level": 0,
                    "priority": 35,
                    "mm_keys": [],
                }
            ],
        },
        {
            "type": "stored",
            "parent_hash": 924206229973855,
            "blocks": [
                {
                    "type": "stored_block",
                    "block_hash": second.hash,
                    "tokens": [
                        {"type": "unique_token", "token_id": 5, "token_extra_id": 0},
                        {"type": "unique_token", "token_id": 6, "token_extra_id": 7},
                    ],
                    "cache_level": 1,
                    "priority": 35,
                    "mm_keys": [{"type": "mm_key", "hash": digest.hex(), "start_offset": 3}],
                }
            ],
        },
        {
            "type": "updated",
            "block_hash": first.hash,
            "cache_level": {"type": "event_diff", "new_value": 1, "old_value": 0},
            "priority": None,
        },
        {
            "type": "updated",
            "block_hash": first.hash,
            "cache_level": None,
            "priority": {"type": "event_diff", "new_value": 80, "old_value": 35},
        },
        {"type": "removed", "block_hashes": [first.hash]},
    ]


def test_without_attention_ranks_none_is_named() -> None:
    manager = KVCacheEventManager(1)
    manager.enqueue_created_event((1, 0), 64)
    [event] = manager.flush()
    assert "attention_dp_rank" not in serialise(event)


def test_a_buffer_for_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="event_buffer_max_size is 0"):
        KVCacheEventManager(0)
