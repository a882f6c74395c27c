"""A sequence's table: its blocks hold its tokens, in order, in any history."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.lab.simworker.state_machines import LONG
from tests.lab.simworker.v0.tables import make
from warmpath.lab.simworker.v0.blocks.block import NoFreeBlocksError
from warmpath.lab.simworker.v0.blocks.block_table import BlockTable
from warmpath.lab.simworker.v0.device import Device

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
        for source, target in self.allocator.gpu.clear_copy_on_writes():
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
