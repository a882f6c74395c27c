"""Applies recorded operations to a block manager, or to two allocators."""

from typing import Any

from warmpath.lab.simworker.v0.blocks.block import NoFreeBlocksError
from warmpath.lab.simworker.v0.blocks.block_manager import BlockManager
from warmpath.lab.simworker.v0.blocks.naive_block import NaiveBlockAllocator
from warmpath.lab.simworker.v0.blocks.prefix_caching_block import (
    PrefixCachingBlock,
    PrefixCachingBlockAllocator,
)
from warmpath.lab.simworker.v0.device import Device
from warmpath.lab.simworker.v0.requests.lora import LoRARequest
from warmpath.lab.simworker.v0.requests.sequence import Sequence, SequenceGroup, SequenceStatus


class ManagerStream:
    """A block manager and its groups, each named by its number; sequences have numbers of their own."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.manager: Any = BlockManager(**config)
        self.groups: dict[int, Any] = {}
        self.seqs: dict[int, Any] = {}

    def apply(self, operation: list[Any]) -> list[Any]:
        """Apply an operation; return its result, and the free blocks of both devices."""
        name, *arguments = operation
        result = getattr(self, name)(*arguments)
        free = [self.manager.get_num_free_gpu_blocks(), self.manager.get_num_free_cpu_blocks()]
        return [result, *free]

    def running(self, group: int) -> list[Any]:
        """Return a group's running sequences."""
        return list(self.groups[group].get_seqs(status=SequenceStatus.RUNNING))

    def _tables(self, group: int) -> list[list[int]]:
        return [list(self.manager.get_block_table(seq)) for seq in self.running(group)]

    def _set(self, seqs: list[Any], status: str) -> None:
        for seq in seqs:
            seq.status = getattr(SequenceStatus, status)

    def admit(self, group: int, tokens: list[int], count: int, lora: int, lookahead: int) -> Any:
        """Allocate a new group if possible."""
        request = LoRARequest(f"lora-{lora}", lora, "/lora") if lora else None
        seqs = [
            Sequence(group * 10 + number, tokens, self.config["block_size"], lora_request=request)
            for number in range(count)
        ]
        new = SequenceGroup(str(group), seqs, 0.0)
        cached = [self.manager.get_num_cached_tokens(seq) for seq in seqs]
        status = self.manager.can_allocate(new, lookahead)
        if status.name != "OK":
            for seq in seqs:
                self.manager.remove_seq_from_computed_blocks_tracker(seq)
            return [status.name, cached]
        self.manager.allocate(new)
        self.groups[group] = new
        self.seqs.update({seq.seq_id: seq for seq in seqs})
        self._set(seqs, "RUNNING")
        common = list(self.manager.get_common_computed_block_ids(seqs))
        self._computed(seqs)
        return [status.name, cached, common, self._tables(group)]

    def _computed(self, seqs: list[Any]) -> None:
        for seq in seqs:
            held = self.manager.block_tables[seq.seq_id].num_full_slots
            seq.update_num_computed_tokens(held - seq.get_num_computed_tokens())

    def extend(self, group: int, tokens: list[list[int]], lookahead: int) -> Any:
        """Sample tokens for each running sequence, and get slots for them if possible."""
        seqs = self.running(group)
        for seq, sampled in zip(seqs, tokens, strict=True):
            for token in sampled:
                seq.append_token_id(token)
        if not self.manager.can_append_slots(self.groups[group], lookahead):
            return None
        copies = [
            [list(pair) for pair in self.manager.append_slots(seq, lookahead)] for seq in seqs
        ]
        self._computed(seqs)
        return [copies, self._tables(group)]

    def fork(self, group: int, parent: int, child: int) -> Any:
        """Fork a running sequence; the child's cached tokens are looked up, as by the next step."""
        parent_seq = self.seqs[parent]
        child_seq = parent_seq.fork(child)
        self.groups[group].add(child_seq)
        self.seqs[child] = child_seq
        self.manager.fork(parent_seq, child_seq)
        return [
            self.manager.get_num_cached_tokens(child_seq),
            list(self.manager.get_block_table(child_seq)),
        ]

    def free(self, seq: int) -> None:
        """Finish a sequence."""
        one = self.seqs.pop(seq)
        self.manager.free(one)
        one.status = SequenceStatus.FINISHED_STOPPED

    def swap_out(self, group: int) -> Any:
        """Swap a running group out if possible."""
        if not self.manager.can_swap_out(self.groups[group]):
            return None
        pairs = self.manager.swap_out(self.groups[group])
        self._set(self.running(group), "SWAPPED")
        return [list(pair) for pair in pairs]

    def swap_in(self, group: int, lookahead: int) -> Any:
        """Swap a group in if possible."""
        swapped = self.groups[group].get_seqs(status=SequenceStatus.SWAPPED)
        status = self.manager.can_swap_in(self.groups[group], lookahead)
        if status.name != "OK":
            return status.name
        pairs = self.manager.swap_in(self.groups[group])
        self._set(swapped, "RUNNING")
        return [[list(pair) for pair in pairs], self._tables(group)]

    def end_step(self, now: float) -> Any:
        """Mark filled blocks as computed, and running sequences' as accessed; return cached tokens."""
        cached = []
        for number, group in self.groups.items():
            self.manager.mark_blocks_as_computed(group, 1)
            for seq in self.running(number):
                self.manager.access_all_blocks_in_seq(seq, now)
                cached.append(self.manager.get_num_cached_tokens(seq))
        return cached

    def reset(self, device: str | None) -> Any:
        """Forget all cached content."""
        return self.manager.reset_prefix_cache(device and Device[device])


class AllocatorStream:
    """Two allocators of one kind, and chains of blocks, each named by its number."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.block_size = config["block_size"]
        make: Any = PrefixCachingBlockAllocator if config["enable_caching"] else NaiveBlockAllocator
        count = config["num_blocks"]
        self.allocators = [
            make(num_blocks=count, block_size=self.block_size, block_ids=range(at, at + count))
            for at in (0, 100)
        ]
        self.chains: dict[int, list[Any]] = {}
        self.where: dict[int, int] = {}
        """Chain -> the position of its allocator."""

    def apply(self, operation: list[Any]) -> list[Any]:
        """Apply an operation; return its result, and the free blocks of both allocators."""
        name, *arguments = operation
        try:
            result = getattr(self, name)(*arguments)
        except NoFreeBlocksError:
            result = "no free blocks"
        return [result, *(allocator.get_num_free_blocks() for allocator in self.allocators)]

    def _allocator(self, chain: int) -> Any:
        return self.allocators[self.where[chain]]

    def _ids(self, chain: int) -> list[int]:
        return [block.block_id for block in self.chains[chain]]

    def begin(self, chain: int, where: int) -> None:
        """Begin a chain without blocks."""
        self.chains[chain] = []
        self.where[chain] = where

    def _last(self, chain: int) -> Any:
        return self.chains[chain][-1] if self.chains[chain] else None

    def immutable(self, chain: int, tokens: list[int], extra_hash: int | None) -> Any:
        """Allocate a full block at a chain's end."""
        block = self._allocator(chain).allocate_immutable_block(
            self._last(chain), tokens, extra_hash=extra_hash
        )
        self.chains[chain].append(block)
        return block.block_id

    def mutable(self, chain: int, extra_hash: int | None) -> Any:
        """Allocate an empty block at a chain's end."""
        block = self._allocator(chain).allocate_mutable_block(
            self._last(chain), extra_hash=extra_hash
        )
        self.chains[chain].append(block)
        return block.block_id

    def append(self, chain: int, tokens: list[int]) -> Any:
        """Append to a chain's last block; return its id, and the copies on write."""
        block = self._last(chain)
        block.append_token_ids(tokens)
        copies = self._allocator(chain).clear_copy_on_writes()
        return [block.block_id, [list(pair) for pair in copies]]

    def fork(self, chain: int, child: int) -> Any:
        """Fork a chain."""
        self.chains[child] = self._allocator(chain).fork(self._last(chain))
        self.where[child] = self.where[chain]
        return self._ids(child)

    def free_last(self, chain: int) -> None:
        """Free a chain's last block."""
        self._allocator(chain).free(self.chains[chain].pop())

    def free(self, chain: int) -> None:
        """Free a chain."""
        for block in self.chains.pop(chain):
            self._allocator(chain).free(block)
        del self.where[chain]

    def accessed(self, chain: int, now: float) -> None:
        """Note an access."""
        self._allocator(chain).mark_blocks_as_accessed(self._ids(chain), now)

    def computed(self, where: int) -> None:
        """Mark filled blocks as computed."""
        self.allocators[where].mark_blocks_as_computed([])

    def find(self, where: int, tokens: list[int], extra_hash: int | None) -> Any:
        """Return how many of these full blocks are cached and computed."""
        hashes: list[int] = []
        for at in range(0, len(tokens), self.block_size):
            hashes.append(
                PrefixCachingBlock.hash_block_tokens(
                    not hashes,
                    hashes[-1] if hashes else None,
                    tokens[at : at + self.block_size],
                    extra_hash,
                )
            )
        return len(self.allocators[where].find_cached_blocks_prefix(hashes))

    def touched(self, chain: int) -> Any:
        """Return how many blocks moving a chain to the other allocator would take."""
        return self.allocators[1 - self.where[chain]].get_num_full_blocks_touched(
            self.chains[chain]
        )

    def move(self, chain: int) -> Any:
        """Swap a chain to the other allocator."""
        self._allocator(chain).swap_out(self.chains[chain])
        self.where[chain] = 1 - self.where[chain]
        self._allocator(chain).swap_in(self.chains[chain])
        return self._ids(chain)

    def common(self, chains: list[int]) -> Any:
        """Return the block ids with which all chains begin."""
        return list(
            self.allocators[0].get_common_computed_block_ids([self._ids(each) for each in chains])
        )

    def positions(self, where: int) -> Any:
        """Return the allocator's ids by their positions."""
        allocator = self.allocators[where]
        return [
            allocator.get_physical_block_id(block_id)
            for block_id in sorted(allocator.all_block_ids)
        ]

    def reset(self, where: int) -> Any:
        """Forget all cached content."""
        return self.allocators[where].reset_prefix_cache()


def stream(config: dict[str, Any]) -> ManagerStream | AllocatorStream:
    """Return the kind of stream that the settings describe."""
    return AllocatorStream(config) if "num_blocks" in config else ManagerStream(config)
