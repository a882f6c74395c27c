"""A sequence's table: its blocks hold its tokens, in order, on whichever device."""

import pytest

from tests.lab.simworker.v0.tables import SIZE, make, table_of, types
from warmpath.lab.simworker.engine import BrokenInvariantError
from warmpath.lab.simworker.v0.blocks.block import BlockAllocator
from warmpath.lab.simworker.v0.blocks.block_table import BlockTable
from warmpath.lab.simworker.v0.device import Device

NoFreeBlocksError = BlockAllocator.NoFreeBlocksError


@types
@pytest.mark.parametrize("device", Device)
@pytest.mark.parametrize("tokens", [1, 4, 5, 16])
def test_a_sequence_takes_whole_blocks_and_gives_them_back(
    allocator_type: str, device: Device, tokens: int
) -> None:
    allocator = make(allocator_type, 8, 8)
    table = BlockTable(SIZE, allocator)
    for _ in range(2):
        table.allocate(list(range(tokens)), device=device)
        needed = BlockTable.get_num_required_blocks(list(range(tokens)), SIZE)
        assert len(table.physical_block_ids) == needed == -(-tokens // SIZE)
        assert allocator.get_num_free_blocks(device) == 8 - needed
        assert {allocator.device_of(each) for each in table.physical_block_ids} == {device}
        assert table.num_full_slots == tokens
        table.check()
        table.free()
        assert allocator.get_num_free_blocks(device) == 8
        assert table.physical_block_ids == []


def test_lookahead_slots_count_as_required() -> None:
    required = BlockTable.get_num_required_blocks
    assert [required([1] * 7, SIZE, ahead) for ahead in (0, 1, 2, 5, 6)] == [2, 2, 3, 3, 4]


def test_only_the_tail_is_not_shared_between_equal_sequences() -> None:
    allocator = make("prefix_caching")
    one, other = table_of(allocator, 10), table_of(allocator, 10)
    assert one.physical_block_ids[:2] == other.physical_block_ids[:2]
    assert one.physical_block_ids[2] != other.physical_block_ids[2]
    assert allocator.get_num_free_blocks(Device.GPU) == 20 - 4


@types
@pytest.mark.parametrize("at_once", [1, 3, 4, 9])
def test_tokens_appended_in_any_portions_are_held_in_order(
    allocator_type: str, at_once: int
) -> None:
    table = table_of(make(allocator_type), 6)
    more = list(range(100, 127))
    for at in range(0, len(more), at_once):
        table.append_token_ids(more[at : at + at_once])
        table.check()
    held = [token for block in table.blocks for token in block.token_ids]
    assert held == [*range(6), *more]
    assert len(table.blocks) == -(-33 // SIZE)
    assert table.get_unseen_token_ids([*held, 7, 8]) == [7, 8]


@types
def test_reserved_slots_are_filled_before_new_blocks_are_taken(allocator_type: str) -> None:
    allocator = make(allocator_type)
    table = table_of(allocator, 6)
    table.ensure_num_empty_slots(11)
    assert len(table.blocks) == 5
    free = allocator.get_num_free_blocks(Device.GPU)
    table.append_token_ids(list(range(11)), num_lookahead_slots=1)
    assert allocator.get_num_free_blocks(Device.GPU) == free
    table.append_token_ids([1], num_lookahead_slots=3)
    assert allocator.get_num_free_blocks(Device.GPU) == free - 1
    table.check()


@types
def test_a_fork_copies_the_last_block_and_no_other(allocator_type: str) -> None:
    allocator = make(allocator_type)
    table = table_of(allocator, 10)
    before = table.physical_block_ids
    fork = table.fork()
    assert fork.physical_block_ids == before
    assert fork.num_full_slots == 10
    fork.append_token_ids([50, 51, 52, 53])
    assert table.physical_block_ids == before
    after = fork.physical_block_ids
    assert after[:2] == before[:2]
    assert allocator.clear_copy_on_writes() == [(before[2], after[2])]
    table.append_token_ids([60])
    assert table.physical_block_ids == before
    assert allocator.clear_copy_on_writes() == []


@types
def test_a_fork_of_full_blocks_copies_nothing(allocator_type: str) -> None:
    allocator = make(allocator_type)
    table = table_of(allocator, 8)
    fork = table.fork()
    fork.append_token_ids([1])
    assert allocator.clear_copy_on_writes() == []
    assert fork.physical_block_ids[:2] == table.physical_block_ids


@types
@pytest.mark.parametrize("held", [3, 4, 5])
@pytest.mark.parametrize("new", [1, 3, 4, 9])
def test_the_blocks_touched_are_those_taken_where_all_are_shared(
    allocator_type: str, held: int, new: int
) -> None:
    allocator = make(allocator_type)
    table = table_of(allocator, held)
    table.fork()
    touched = table.get_num_blocks_touched_by_append_slots([0] * new, 0)
    free = allocator.get_num_free_blocks(Device.GPU)
    table.append_token_ids([7] * new)
    assert free - allocator.get_num_free_blocks(Device.GPU) == touched


def test_nothing_to_append_touches_a_block_that_is_filled_in_part() -> None:
    allocator = make("naive")
    assert table_of(allocator, 6).get_num_blocks_touched_by_append_slots([], 0) == 1
    assert table_of(allocator, 8).get_num_blocks_touched_by_append_slots([], 0) == 0
    assert table_of(allocator, 8).get_num_blocks_touched_by_append_slots([], 5) == 2


@types
def test_blocks_behind_the_window_give_way_to_the_null_block(allocator_type: str) -> None:
    allocator = make(allocator_type)
    table = table_of(allocator, 10, max_block_sliding_window=2)
    table.append_token_ids([1], num_computed_slots=10)
    null = allocator.null_block_id
    assert null is not None
    assert null not in table.physical_block_ids
    before = table.physical_block_ids
    table.append_token_ids([1, 1], num_computed_slots=16)
    assert table.physical_block_ids == [null, null, before[2], table.physical_block_ids[3]]
    assert (table.num_full_slots, len(table.blocks)) == (13, 4)
    table.check()
    # The null block, and the two that are held.
    assert allocator.get_num_free_blocks(Device.GPU) == 20 - 3
    table.free()
    assert allocator.get_num_free_blocks(Device.GPU) == 19


@types
def test_a_fork_behind_a_window_shares_what_is_held_and_goes_on(allocator_type: str) -> None:
    allocator = make(allocator_type)
    table = table_of(allocator, 14, max_block_sliding_window=2)
    table.append_token_ids([1], num_computed_slots=14)
    fork = table.fork()
    assert fork.physical_block_ids == table.physical_block_ids
    assert fork.num_full_slots == 15
    fork.append_token_ids([2, 2], num_computed_slots=15)
    fork.check()
    table.free()
    fork.append_token_ids([3] * 8, num_computed_slots=17)
    fork.check()
    allocator.check()
    fork.free()
    assert allocator.get_num_free_blocks(Device.GPU) == 19


def test_a_window_has_to_know_how_far_it_has_come() -> None:
    table = table_of(make("naive"), 6, max_block_sliding_window=2)
    with pytest.raises(ValueError, match="num_computed_slots: needed"):
        table.append_token_ids([1])


def test_a_table_is_allocated_once_and_before_it_is_used() -> None:
    allocator = make("naive")
    table = BlockTable(SIZE, allocator)
    for use in (
        table.fork,
        lambda: table.append_token_ids([1]),
        lambda: table.ensure_num_empty_slots(1),
    ):
        with pytest.raises(ValueError, match="not allocated"):
            use()
    with pytest.raises(ValueError, match="token_ids: at least 1"):
        table.allocate([])
    table.allocate([1])
    with pytest.raises(ValueError, match="allocated already"):
        table.allocate([1])


@types
@pytest.mark.parametrize("tokens", [12, 11])
def test_a_sequence_that_does_not_fit_takes_nothing(allocator_type: str, tokens: int) -> None:
    allocator = make(allocator_type, gpu=2)
    table = BlockTable(SIZE, allocator)
    with pytest.raises(NoFreeBlocksError):
        table.allocate(list(range(tokens)))
    assert allocator.get_num_free_blocks(Device.GPU) == 2
    assert table.physical_block_ids == []
    allocator.check()


def test_tokens_that_find_no_slot_are_not_appended() -> None:
    table = table_of(make("naive", gpu=2), 6)
    with pytest.raises(NoFreeBlocksError):
        table.append_token_ids([1, 2, 3])
    assert table.num_full_slots == 6
    table.check()


def test_a_table_out_of_order_is_told() -> None:
    table = table_of(make("naive"), 10)
    first, second, third = table.blocks
    table._blocks = [second, first, third]
    with pytest.raises(BrokenInvariantError, match="does not follow"):
        table.check()
    table._blocks = [first, second]
    with pytest.raises(BrokenInvariantError, match="8 tokens held, 10 counted"):
        table.check()
