"""Calls every compiled function once, so that all of them are compiled before the first request."""

from collections.abc import Callable

import msgspec
import numpy as np
from msgspec.structs import replace

from warmpath.indexer.compiled.array_index import ArrayIndex
from warmpath.indexer.compiled.array_rank import ArrayState
from warmpath.indexer.compiled.blocks import blocks as blocks_of
from warmpath.indexer.compiled.blocks import give_up as leave
from warmpath.indexer.compiled.keys import highest, packed
from warmpath.indexer.compiled.scan.dialect import DIALECTS
from warmpath.indexer.compiled.scan.scan import scan
from warmpath.indexer.compiled.scan.scanned import room
from warmpath.indexer.compiled.scan.varint import unpack
from warmpath.indexer.compiled.segments import stretches_of
from warmpath.indexer.compiled.steps import begin, end, is_at, version_of
from warmpath.indexer.engines import vllm
from warmpath.indexer.index.slot import SlotTable
from warmpath.indexer.keys.key import Chain
from warmpath.indexer.resolve.rank_slots import RankSlots


def warm_up(index: ArrayIndex, await_helper: Callable[[], None] = lambda: None) -> None:
    """Call every compiled function once, those of `follow_ranks` after `await_helper`."""
    scan(np.zeros(0, np.int64), DIALECTS["vllm"], room(0), np.zeros(0, np.int64))
    chain = Chain(1, bytes(4 * 16 * 300), 16, 300)
    keys = chain.keys()
    made = packed(chain.tokens, chain.block_size, chain.blocks, chain.root)
    stretches_of(np.zeros(1, np.uint64), [(0, 1, None)])
    index.add(0, keys)
    index.add(100, keys)
    index.match(chain)
    index.match(replace(chain, made=made))
    index.stretches(keys)
    index.holds(0, np.array(keys, np.uint64))
    index.remove(0, keys)
    index.drop(100)
    index.sweep(1 << 20)
    for slot in range(10):  # more sets than their table has room for
        index.add(slot, [key for key in range(1 << 10) if key >> slot & 1])
    index.add(300, keys)
    # To Numba, a read-only array is of another type, for which it compiles a function again.
    highest(np.frombuffer(bytes(4), np.uint32))
    unpack(np.frombuffer(bytes(1), np.uint8), np.empty(1, np.uint32))
    for start in range(0, 1 << 16, 1 << 10):
        index.add(99, range(start, start + (1 << 10)))
    blocks_of.wake(index.arrays.blocks)
    leave.age(index.arrays.blocks, 1)
    words = np.zeros(1, np.int64)
    begin(words, 0)
    end(words, 0)
    is_at(words, 0, version_of(words, 0))
    await_helper()
    follow_ranks(index)


def follow_ranks(index: ArrayIndex) -> None:
    """Follow two ranks that give the same blocks different names."""
    table = SlotTable()
    states = []
    for life in range(2):
        state = ArrayState(
            "",
            "",
            orphan_bytes=1 << 12,
            index=index,
            slots=RankSlots("", life, index, table),
            dialect="vllm",
            decode=vllm.decode,
        )
        # Following takes longest to compile: nothing else comes before it.
        state.apply_scanned(0, heals=False)

        def say(*events: dict[str, object], to: ArrayState = state) -> None:
            payload = msgspec.msgpack.encode([0.0, events, 0])
            if to.scan((payload,)):
                while to.apply_scanned(0, heals=False):
                    pass
            else:
                to.apply(vllm.decode(payload).events)

        name = life * 1000
        first: dict[str, object] = {
            "type": "BlockStored",
            "block_hashes": [name + 1, name + 2],
            "parent_block_hash": None,
            "token_ids": list(range(32)),
            "block_size": 16,
        }
        later: dict[str, object] = {
            **first,
            "block_hashes": [name + 3, name + 4],
            "parent_block_hash": name + 2,
        }
        say(first)
        say(later)
        say(first)
        say({**later, "parent_block_hash": name + 9})
        say({"type": "BlockRemoved", "block_hashes": [name + 1, name + 2]})
        other = {**first, "token_ids": list(range(32, 64))}
        say({**other, "block_hashes": [name + 7, name + 8]})
        say({**other, "block_hashes": [name + 9, name + 10]})
        child = {**other, "parent_block_hash": name + 8, "lora_name": "x"}
        say({**child, "block_hashes": [name + 15, name + 16]})
        state.doubt()
        say({**other, "block_hashes": [name + 13, name + 14], "lora_name": "x"})
        say({**child, "block_hashes": [name + 17, name + 18], "parent_block_hash": name + 16})
        say({**first, "block_hashes": [name + 11, name + 12], "token_ids": list(range(64, 96))})
        say({**later, "block_hashes": [name + 5, name + 6]})
        say({"type": "BlockRemoved", "block_hashes": [name + 6]})
        state.settle()
        state.held()
        state.restore(state.save())
        state.doubt()
        state.doubt()
        states.append(state)
    for state in states:
        state.close()
