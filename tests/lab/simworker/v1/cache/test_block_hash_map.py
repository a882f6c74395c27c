"""Which blocks are found under which keys, against lists in the order of insertion."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.lab.simworker.state_machines import LONG
from warmpath.lab.simworker.v1.cache.block_hash_map import BlockHashToBlockMap
from warmpath.lab.simworker.v1.cache.kv_cache_block import KVCacheBlock


class AnyInsertions(RuleBasedStateMachine):
    """Few keys, few blocks, so that keys have several."""

    def __init__(self) -> None:
        super().__init__()
        self.map = BlockHashToBlockMap()
        self.model: dict[bytes, list[KVCacheBlock]] = {}
        self.blocks = [KVCacheBlock(block_id) for block_id in range(4)]

    @rule(key=st.sampled_from([b"a", b"b"]), which=st.integers(0, 3))
    def insert(self, key: bytes, which: int) -> None:
        block = self.blocks[which]
        self.map.insert(key, block)
        held = self.model.setdefault(key, [])
        if block not in held:
            held.append(block)

    @rule(key=st.sampled_from([b"a", b"b"]), which=st.integers(0, 3))
    def pop(self, key: bytes, which: int) -> None:
        held = self.model.get(key, [])
        expected = self.blocks[which] if self.blocks[which] in held else None
        assert self.map.pop(key, which) is expected
        if expected is not None:
            held.remove(expected)
            if not held:
                del self.model[key]

    @invariant()
    def it_is_the_lists(self) -> None:
        assert len(self.map) == len(self.model)
        assert sorted((key, block.block_id) for key, block in self.map.items()) == sorted(
            (key, block.block_id) for key, held in self.model.items() for block in held
        )
        for key in (b"a", b"b"):
            held = self.model.get(key, [])
            assert self.map.get_one_block(key) is (held[0] if held else None)
            assert [self.map.contain(key, at) for at in range(4)] == [
                block in held for block in self.blocks
            ]


TestAnyInsertions = AnyInsertions.TestCase
TestAnyInsertions.settings = LONG
