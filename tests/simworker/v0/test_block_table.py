"""A sequence's table: its blocks hold its tokens, in order, on whichever device."""

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from simworker.engine import BrokenInvariantError
from simworker.v0.block import BlockAllocator
from simworker.v0.block_table import BlockTable
from simworker.v0.cpu_gpu_block_allocator import CpuGpuBlockAllocator
from simworker.v0.device import Device
from simworker.v0.naive_block import NaiveBlock, NaiveBlockAllocator
from tests.simworker.state_machines import LONG

NoFreeBlocksError = BlockAllocator.NoFreeBlocksError
SIZE = 4
types = pytest.mark.parametrize("allocator_type", ["naive", "prefix_caching"])


def make(
    allocator_type: str, gpu: int = 20, cpu: int = 10, size: int = SIZE
) -> CpuGpuBlockAllocator:
    return CpuGpuBlockAllocator.create(allocator_type, gpu, cpu, size)


def table_of(allocator: CpuGpuBlockAllocator, tokens: int, **options: Any) -> BlockTable:
    table = BlockTable(SIZE, allocator, **options)
    table.allocate(list(range(tokens)))
    return table


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


def test_both_devices_have_ids_of_their_own() -> None:
    allocator = make("naive", 3, 2)
    assert allocator.all_block_ids == {0, 1, 2, 3, 4}
    assert [allocator.device_of(each) for each in (2, 3)] == [Device.GPU, Device.CPU]
    assert [allocator.get_physical_block_id(Device.CPU, each) for each in (3, 4)] == [0, 1]
    assert allocator.get_num_total_blocks(Device.GPU) == 3
    shared = (
        NaiveBlockAllocator(NaiveBlock, 3, SIZE),
        NaiveBlockAllocator(NaiveBlock, 2, SIZE, [2, 3]),
    )
    with pytest.raises(ValueError, match="ids of the GPU's too, such as 2"):
        CpuGpuBlockAllocator(*shared)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("radix", 1, 1, 1), "allocator_type: 'radix'"),
        (("naive", -1, 1, 1), "num_gpu_blocks: -1"),
        (("naive", 1, -1, 1), "num_cpu_blocks: -1"),
        (("naive", 1, 1, 0), "block_size: 0"),
    ],
)
def test_what_cannot_be_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CpuGpuBlockAllocator.create(*arguments)


def test_the_null_block_is_one_and_neither_written_moved_nor_freed() -> None:
    allocator = make("naive", 3, 2)
    null = allocator.allocate_or_get_null_block()
    assert allocator.allocate_or_get_null_block() is null
    with pytest.raises(ValueError, match="null block"):
        null.append_token_ids([1])
    with pytest.raises(ValueError, match="null block"):
        null.block_id = 2
    allocator.free(null)
    assert allocator.swap([null], Device.GPU, Device.CPU) == {}
    assert (null.block_id, allocator.get_num_free_blocks(Device.GPU)) == (0, 2)
    assert (null.token_ids, null.num_empty_slots, null.is_full) == ([], SIZE, False)
    assert (null.prev_block, null.extra_hash, null.content_hash) == (None, None, None)
    allocator.check()


@types
def test_a_swap_that_does_not_fit_moves_nothing(allocator_type: str) -> None:
    allocator = make(allocator_type, cpu=2)
    table = table_of(allocator, 10)
    before = table.physical_block_ids
    with pytest.raises(NoFreeBlocksError, match="3 blocks wanted, 2 are free"):
        allocator.swap(table.blocks, Device.GPU, Device.CPU)
    assert table.physical_block_ids == before
    allocator.check()


TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=5)
PICK = st.integers(0, 5)
LOOKAHEAD = st.sampled_from([0, 0, 0, 1, 3])


class Tables(RuleBasedStateMachine):
    """Tables over 9 blocks of 2 tokens, each beside a list of its tokens."""

    allocator_type = "naive"
    window: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.allocator = make(self.allocator_type, 9, 0, 2)
        self.tables: list[tuple[BlockTable, list[int]]] = []
        self.null = 0
        if self.window is not None:
            self.allocator.allocate_or_get_null_block()
            self.null = 1

    def _free(self) -> int:
        return self.allocator.get_num_free_blocks(Device.GPU)

    @rule(tokens=TOKENS)
    def allocate(self, tokens: list[int]) -> None:
        if len(self.tables) > 4:
            return
        free = self._free()
        table = BlockTable(2, self.allocator, max_block_sliding_window=self.window)
        try:
            table.allocate(tokens)
        except NoFreeBlocksError:
            assert free < BlockTable.get_num_required_blocks(tokens, 2)
            assert self._free() == free
            return
        self.tables.append((table, list(tokens)))

    @precondition(lambda self: self.tables)
    @rule(at=PICK, tokens=TOKENS, lookahead=LOOKAHEAD)
    def append(self, at: int, tokens: list[int], lookahead: int) -> None:
        table, held = self.tables[at % len(self.tables)]
        touched = table.get_num_blocks_touched_by_append_slots(tokens, lookahead)
        free = self._free()
        if touched > free:
            return
        table.append_token_ids(tokens, lookahead, num_computed_slots=len(held))
        held += tokens
        assert free - self._free() <= touched
        for source, target in self.allocator.clear_copy_on_writes():
            assert source != target

    @precondition(lambda self: self.tables)
    @rule(at=PICK)
    def fork(self, at: int) -> None:
        table, held = self.tables[at % len(self.tables)]
        if len(self.tables) < 5:
            free = self._free()
            self.tables.append((table.fork(), list(held)))
            assert self._free() == free

    @precondition(lambda self: self.tables)
    @rule(at=PICK)
    def free(self, at: int) -> None:
        table, _ = self.tables.pop(at % len(self.tables))
        table.free()

    @invariant()
    def nothing_is_broken(self) -> None:
        self.allocator.check()
        for table, held in self.tables:
            table.check()
            assert table.num_full_slots == len(held)
            window = [token for block in table.blocks for token in block.token_ids]
            assert window == held[len(held) - len(window) :]

    @invariant()
    def used_blocks_are_those_in_tables(self) -> None:
        used = {each for table, _ in self.tables for each in table.physical_block_ids}
        used.discard(-1 if self.allocator.null_block_id is None else self.allocator.null_block_id)
        assert self._free() == 9 - len(used) - self.null


class CachingTables(Tables):
    """The same, found by content."""

    allocator_type = "prefix_caching"


class WindowTables(Tables):
    """The same, behind a window."""

    window = 2


class CachingWindowTables(CachingTables):
    """Both."""

    window = 2


TestTables = Tables.TestCase
TestCachingTables = CachingTables.TestCase
TestWindowTables = WindowTables.TestCase
TestCachingWindowTables = CachingWindowTables.TestCase
TestTables.settings = LONG
TestCachingTables.settings = LONG
TestWindowTables.settings = LONG
TestCachingWindowTables.settings = LONG
