"""The events' buffer, and what events look like outside."""

import pytest

from warmpath.lab.simworker.trtllm.blocks.block import KVCacheBlock, Slot
from warmpath.lab.simworker.trtllm.blocks.block_key import BlockKey
from warmpath.lab.simworker.trtllm.blocks.reuse_tree import ReuseTree
from warmpath.lab.simworker.trtllm.events.event_manager import KVCacheEventManager
from warmpath.lab.simworker.trtllm.events.kv_cache_event import KVCacheRemovedData, serialise


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
    assert manager.num_discarded == 1
    for window in range(5):
        manager.enqueue_created_event((1,), window)
    manager.flush()
    assert [event.event_id for event in manager.get_events()] == [6, 7]
    assert manager.num_discarded == 4


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
