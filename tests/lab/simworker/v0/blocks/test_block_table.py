"""A sequence's table: its blocks hold its tokens, in order, on whichever device."""

import pytest

from tests.lab.simworker.v0.tables import SIZE, make, table_of
from warmpath.lab.simworker.engine import BrokenInvariantError
from warmpath.lab.simworker.v0.blocks.block import NoFreeBlocksError
from warmpath.lab.simworker.v0.blocks.block_table import BlockTable


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
