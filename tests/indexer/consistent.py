"""Looks inside the stateful parts of the indexer: `check` raises AssertionError where one contradicts itself."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import singledispatch
from typing import Any

import numpy as np

from tests.conformance.reference_index import ReferenceIndex
from warmpath.indexer.believed import Belief, Believed
from warmpath.indexer.compiled.array_index import ArrayIndex
from warmpath.indexer.compiled.array_rank import ArrayState
from warmpath.indexer.compiled.arrays import Arrays
from warmpath.indexer.compiled.blocks import table
from warmpath.indexer.compiled.blocks.blocks import DEPTH, FREED, LIVE, NAMED, SET, TOP, Blocks
from warmpath.indexer.compiled.blocks.sets import USED, Sets, slots_of
from warmpath.indexer.compiled.names.names_by_key import NamesByKey
from warmpath.indexer.compiled.outside import Outside
from warmpath.indexer.engines.event import EngineHash
from warmpath.indexer.follow.backlog import Backlog
from warmpath.indexer.follow.stream_source import RankIngest
from warmpath.indexer.index.memory import MemoryIndex, _bits
from warmpath.indexer.index.orphans import Orphans
from warmpath.indexer.index.slot import SlotTable
from warmpath.indexer.keys.key import WORD_BYTES, unpack_words
from warmpath.indexer.keys.segment import SEGMENT, Segments
from warmpath.indexer.rank import Rank
from warmpath.indexer.ranks import Ingest
from warmpath.indexer.resolve.change import Spot
from warmpath.indexer.resolve.holding import Holding
from warmpath.indexer.resolve.names import Names
from warmpath.indexer.resolve.rank_slots import RankSlots
from warmpath.indexer.resolve.rank_state import PureState
from warmpath.indexer.resolve.resolver import Resolver
from warmpath.indexer.stream.machine import Stream, StreamState
from warmpath.indexer.stream.trust import StreamTrust
from warmpath.indexer.trust import Level
from warmpath.indexer.watch.pod_cache import Pending, PodCache


@singledispatch
def check(part: object, *_: object) -> Any:
    raise TypeError(f"no check of {type(part).__name__}")


@check.register
def _(rank: Rank) -> None:
    del rank  # its blocks are counted elsewhere


@check.register
def _(believed: Believed) -> None:
    check(believed._index)
    said = {**_arriving(believed), **_assumed(believed)}
    if len(believed) > believed.max_blocks:
        raise AssertionError("more blocks are believed than max_blocks")
    beliefs = [(slot, one) for slot, one in enumerate(believed._beliefs) if one is not None]
    live = [slot for slot, _ in beliefs]
    used = [*live, *believed._free]
    if len(used) != len(set(used)) or not set(used) <= set(range(len(believed._beliefs))):
        raise AssertionError("a slot has two uses")
    if sorted(belief for _, belief in beliefs) != sorted(said):
        raise AssertionError("the slots are not those of the beliefs")
    index = believed._index
    stats = index.stats()
    for slot, belief in beliefs:
        keys = said[belief]
        found = sum(
            stop - start for holder, start, stop in index.stretches(list(keys)) if holder == slot
        )
        if found != index.count(slot):
            raise AssertionError(f"the index holds blocks that nobody believes of {belief}")
        if found != len(keys) and not stats.evicted:
            raise AssertionError(f"the index does not hold all of {belief}")
    if stats.entries != sum(index.count(slot) for slot in live):
        raise AssertionError("the index holds something for a slot that is free")


def _arriving(believed: Believed) -> dict[Belief, set[int]]:
    said: dict[Belief, set[int]] = {}
    prompts: dict[Belief, list[tuple[bytes, int]]] = {}
    for number, ticket in believed._tickets.items():
        said.setdefault(ticket.belief, set()).update(unpack_words(ticket.keys))
        prompts.setdefault(ticket.belief, []).append((ticket.keys, number))
        if (ticket.ends, number) not in believed._ends:
            raise AssertionError(f"nothing ends ticket {number}")
    if {belief: sorted(of) for belief, of in prompts.items()} != {
        belief: arriving.prompts for belief, arriving in believed._arriving.items()
    }:
        raise AssertionError("the ranks' prompts are not those of the tickets")
    blocks = sum(len(one.keys) // WORD_BYTES for one in believed._tickets.values())
    if believed._arriving_blocks != blocks:
        raise AssertionError("the blocks of the tickets do not add up")
    if len(believed._ends) > 2 * len(believed._tickets) + 64:
        raise AssertionError("ends of tickets long gone are kept")
    return said


def _assumed(believed: Believed) -> dict[Belief, set[int]]:
    ranks = believed._assumed
    if believed._assumed_blocks != sum(len(assumed.times) for assumed in ranks.values()):
        raise AssertionError("the assumed blocks do not add up")
    bounds = {slot: time for time, slot in believed._earliest}
    if sorted(bounds) != sorted(assumed.slot for assumed in ranks.values()):
        raise AssertionError("a rank has no entry in the heap of times, or two")
    for belief, assumed in ranks.items():
        times = list(assumed.times.values())
        if times != sorted(times) or bounds[assumed.slot] > times[0]:
            raise AssertionError(f"{belief}: its blocks are out of order")
    return {belief: set(assumed.times) for belief, assumed in ranks.items()}


@check.register
def _(index: ArrayIndex) -> None:
    check(index.arrays)


@check.register
def _(state: ArrayState) -> None:
    check(state.resolver)
    odd = state.resolver.names
    check(state._odd.by_key, {name: odd.keys_of(name) for name in odd.keys})
    names, numbers = state._plain.all()
    if not odd.keys.keys().isdisjoint(names.tolist()):
        raise AssertionError("a name is plain and odd")
    if (state._plain.find_all(names) != numbers).any():
        raise AssertionError("a plain name is not found")
    held = np.zeros(len(names), np.bool_)
    for _, there in state._plain.holders(numbers):
        held |= there
    if not held.all():
        raise AssertionError("a plain name's block is not held")
    check(state._slots, state.held())


@check.register
def _(arrays: Arrays) -> None:
    check_blocks(arrays.blocks, arrays.sets)
    check(arrays.outside)


@check.register
def _(by_key: NamesByKey, keys: Mapping[EngineHash, Iterable[int]]) -> None:
    names_of: dict[int, set[EngineHash]] = {}
    for name, of_name in keys.items():
        for key in of_name:
            names_of.setdefault(key, set()).add(name)
    if names_of != {key: set(names) for key, names in by_key._names.items()}:
        raise AssertionError("the odd names of the keys do not add up")


@check.register
def _(outside: Outside) -> None:
    counted, whole = outside.count(), outside.whole()
    if counted != whole:
        raise AssertionError(f"{counted} bytes are counted, and owners have {whole}")


@check.register
def _(backlog: Backlog) -> None:
    if backlog._bytes != sum(size for size, _ in backlog._waiting):
        raise AssertionError("the waiting messages' bytes do not add up")
    if backlog._bytes > backlog._max_bytes and len(backlog._waiting) > 1:
        raise AssertionError("the waiting messages have more than max_bytes")


@check.register
def _(rank: RankIngest) -> None:
    check(rank.stream)
    check(rank.state)
    if rank.is_connected is (rank.stream.state is StreamState.WAITING):
        raise AssertionError("the rank and its stream differ on the connection")


@check.register
def _(index: MemoryIndex) -> None:
    counts: dict[int, int] = {}
    if (
        Counter(index._set_of.values()) != index._uses
        or index._uses.keys() != index._interned.keys()
    ):
        raise AssertionError("the sets in use are not those of the keys")
    if index._ages.keys() != index._set_of.keys():
        raise AssertionError("some keys have no age, or some ages no key")
    for mask in index._set_of.values():
        if not mask:
            raise AssertionError("a key without holders is kept")
        if index._interned.get(mask) is not mask:
            raise AssertionError(f"the set {mask:#x} is not interned")
        for slot in _bits(mask & index._live):
            counts[slot] = counts.get(slot, 0) + 1
    if counts != {slot: count for slot, count in index._counts.items() if count}:
        raise AssertionError("the counts of held keys do not add up")


@check.register
def _(orphans: Orphans) -> None:
    if orphans.bytes != sum(orphan.size for orphan in orphans._waiting):
        raise AssertionError("the waiting bytes do not add up")
    if orphans.bytes > orphans._max_bytes:
        raise AssertionError("the waiting stores take more than max_bytes")
    waiting = set(orphans._waiting)
    for known in (orphans._by_parent, orphans._by_name):
        if {orphan for found in known.values() for orphan in found} != waiting:
            raise AssertionError("a table of waiting stores disagrees with the others")


@check.register
def _(slots: SlotTable) -> None:
    live = {place: slot for slot, place in enumerate(slots._places) if place is not None}
    if live != slots._slots:
        raise AssertionError("slots and places disagree")
    if any(slots._places[slot] is not None for slot in slots._free):
        raise AssertionError("a slot is free and in use")


@check.register
def _(segments: Segments, held: Collection[int]) -> None:
    if segments._segments.keys() != set(held) or segments._positions.keys() != set(held):
        raise AssertionError("the keys whose segments are known are not those that are held")
    for key, segment in segments._segments.items():
        position = segments._positions[key]
        if not 0 <= position < SEGMENT or (position == 0) != (segment == key):
            raise AssertionError("a key has a position that its segment cannot have")


@check.register
def _(ingest: Ingest) -> None:
    check(ingest.index)
    check(ingest.slots)
    for rank in ingest._ranks.values():
        check(rank)


@check.register
def _(holding: Holding, keys: dict[EngineHash, tuple[int, ...]]) -> None:
    if min(holding.copies.values(), default=1) < 1:
        raise AssertionError("a name without copies is kept")
    if not holding.doubted <= holding.copies.keys():
        raise AssertionError("a name that is not held is in doubt")
    if not holding.thinned <= holding.copies.keys() - holding.doubted:
        raise AssertionError("a name whose last event was a removal is not held, or in doubt")
    once = {name for name, count in holding.copies.items() if count == 1}
    if not holding.repeated <= holding.copies.keys() - holding.doubted - (once - holding.thinned):
        raise AssertionError("a name that a hit may have stored has one copy, or is in doubt")
    certain = (count for name, count in holding.copies.items() if name not in holding.doubted)
    if holding.certain != sum(certain):
        raise AssertionError("the copies do not add up")
    standing = {(key, name) for name in holding.copies for key in keys[name]}
    known = [*holding.names.items()]
    known += ((key, name) for key, names in holding._more.items() for name in names)
    if standing != set(known) or len(standing) != len(known) or not all(holding._more.values()):
        raise AssertionError("the names of the keys do not add up")


@check.register
def _(names: Names) -> None:
    live = {name for holding in names.holdings.values() for name in holding.copies}
    if live != names.keys.keys():
        raise AssertionError("the names with a key are not the live ones")
    if not names.above.keys() | names.earlier.keys() <= live:
        raise AssertionError("keys are kept for a name that is not live")
    keys = {name: names.keys_of(name) for name in live}
    for holding in names.holdings.values():
        check(holding, keys)


@check.register
def _(rank: RankSlots, held: Mapping[Spot, set[int]]) -> None:
    for spot in rank.certain.keys() | rank.doubted.keys():
        keys = held.get(spot, set())
        slots = {of[spot] for of in (rank.certain, rank.doubted) if spot in of}
        if sum(map(rank._index.count, slots)) != len(keys):
            raise AssertionError(f"the slots of {spot} do not hold {len(keys)} keys")
        stretches = rank._index.stretches(list(keys))
        if sum(stop - start for slot, start, stop in stretches if slot in slots) != len(keys):
            raise AssertionError(f"the slots of {spot} do not hold all of its keys")
    if any(keys for spot, keys in held.items() if spot not in rank.certain):
        raise AssertionError("a place that holds keys has no slot")


@check.register
def _(state: PureState) -> None:
    check(state.resolver)
    check(state._sink, state.held())


@check.register
def _(resolver: Resolver) -> None:
    check(resolver.orphans)
    check(resolver.names)
    if resolver.segments is not None:
        check(resolver.segments, {key for keys in resolver.names.places().values() for key in keys})


@check.register
def _(stream: Stream) -> None:
    if stream._held and stream.state is not StreamState.REPLAYING:
        raise AssertionError("batches are held although no replay runs")
    if stream._held_bytes != sum(len(payload) for _, payload in stream._held):
        raise AssertionError("the held bytes do not add up")
    if stream.state is StreamState.REPLAYING and stream.trust.level is Level.EXACT:
        raise AssertionError("exact while a replay is not over")
    check(stream.trust)
    if not all(sequence < stream._next for sequence in stream._digests):
        raise AssertionError("a batch that is not applied has a digest")


@check.register
def _(trust: StreamTrust) -> None:
    if trust.stray and trust.level is Level.EXACT:
        raise AssertionError(
            "exact although a message that could not be read may have been a batch"
        )


@check.register
def _(pending: Pending, held: Mapping[Spot, set[int]]) -> None:
    del pending, held  # what it holds is what the names hold


@check.register
def _(cache: PodCache) -> None:
    for rank in cache.ranks:
        check(rank)


@check.register
def _(index: ReferenceIndex) -> None:
    if not all(index._slots_of.values()):
        raise AssertionError("a key without holders is kept")


def check_blocks(blocks: Blocks, sets: Sets) -> None:
    top = int(blocks.state[TOP])
    numbers = np.flatnonzero(blocks.quarters[1:top, DEPTH] != FREED) + 1
    keys = blocks.records[numbers, 0]
    _require(len(numbers) == int(blocks.state[LIVE]), "the number of blocks is wrong")
    _require(len(np.unique(keys)) == len(keys), "two blocks have one key")
    for field, words, entries in (
        ("by_key", blocks.records, numbers),
        ("by_name", blocks.names, numbers[blocks.names[numbers, 0] != 0]),
    ):
        places = getattr(blocks, field)
        _require(
            np.count_nonzero(places) == len(entries), f"{field} has too many entries, or too few"
        )
        for number in entries.tolist():
            word = words[number, 0]
            at = table.seek(places, words, word, table.home(word, len(places)))
            while at >= 0 and table.number_at(places, at) != number:
                at = table.seek(places, words, word, table.after(at, len(places)))
            _require(at >= 0, f"{field} does not find block {number}")
    _require(
        int(blocks.state[NAMED]) == np.count_nonzero(blocks.names[numbers, 0]),
        "the number of names is wrong",
    )
    held = blocks.halves[numbers, SET]
    _require(bool((held != 0).all()), "a block that nobody holds is kept")
    uses: Any = np.bincount(held, minlength=1)
    used = np.flatnonzero(uses)
    _require(bool((sets.uses[used] == uses[used]).all()), "the uses of sets do not add up")
    _require(int(sets.state[USED]) == len(used), "sets that nobody has are kept")
    words_used = [tuple(row) for row in sets.words[used].tolist()]
    _require(len(set(words_used)) == len(used), "a set is kept twice")
    counts = np.zeros(len(blocks.counts), np.int64)
    for number in used.tolist():
        counts[slots_of(sets.words[number] & sets.live)] += uses[number]
    _require(bool((counts == blocks.counts).all()), "the counts of held keys do not add up")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)
