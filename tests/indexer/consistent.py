"""Looks inside the stateful parts of the indexer: `check` raises AssertionError where one contradicts itself."""

from collections.abc import Collection, Iterable, Mapping
from functools import singledispatch
from typing import Any

import numpy as np

from tests.conformance.reference_index import ReferenceIndex
from tests.indexer.memory_index import MemoryIndex
from warmpath.indexer.believed import Belief, Believed
from warmpath.indexer.compiled import jit
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


@check.register(Rank)
@check.register(Pending)
def _(part: object, *_: object) -> None:
    del part  # its blocks are counted elsewhere


@check.register
def _(believed: Believed) -> None:
    check(believed._index)
    said = {**_arriving(believed), **_assumed(believed)}
    assert len(believed) <= believed.max_blocks, "more blocks are believed than max_blocks"
    beliefs = [(slot, one) for slot, one in enumerate(believed._beliefs) if one is not None]
    live = [slot for slot, _ in beliefs]
    used = [*live, *believed._free]
    assert len(used) == len(set(used)), "a slot has two uses"
    assert set(used) <= set(range(len(believed._beliefs))), "a slot in use does not exist"
    assert sorted(one for _, one in beliefs) == sorted(said), (
        "the slots are not those of the beliefs"
    )
    index = believed._index
    stats = index.stats()
    for slot, belief in beliefs:
        added, keys = said[belief]
        found, held = (
            sum(stop - start for holder, start, stop in index.stretches([*of]) if holder == slot)
            for of in (added, keys)
        )
        assert held == index.count(slot), f"the index holds blocks that nobody believes of {belief}"
        assert found == len(added) or stats.evicted, f"the index does not hold all of {belief}"
    assert stats.entries == sum(map(index.count, live)), "the index holds something for a free slot"


def _arriving(believed: Believed) -> dict[Belief, tuple[set[int], set[int]]]:
    """Return the keys that tickets have added to the index, and those that it may have, by belief."""
    said: dict[Belief, tuple[set[int], set[int]]] = {}
    prompts: dict[Belief, list[tuple[bytes, int]]] = {}
    for number, ticket in believed._tickets.items():
        keys = unpack_words(ticket.keys)
        for of, start in zip(
            said.setdefault(ticket.belief, (set(), set())),
            (ticket.start, ticket.least),
            strict=True,
        ):
            of.update(keys[start:])
        prompts.setdefault(ticket.belief, []).append((ticket.keys, number))
        assert (ticket.ends, number) in believed._ends, f"nothing ends ticket {number}"
    known = {belief: arriving.prompts for belief, arriving in believed._arriving.items()}
    told = {belief: sorted(of) for belief, of in prompts.items()}
    assert told == known, "the ranks' prompts are not those of the tickets"
    blocks = sum(len(one.keys) // WORD_BYTES for one in believed._tickets.values())
    assert believed._arriving_blocks == blocks, "the blocks of the tickets do not add up"
    assert len(believed._ends) <= 2 * len(believed._tickets) + 64, (
        "ends of tickets long gone are kept"
    )
    return said


def _assumed(believed: Believed) -> dict[Belief, tuple[set[int], set[int]]]:
    ranks = believed._assumed
    blocks = sum(len(assumed.times) for assumed in ranks.values())
    assert believed._assumed_blocks == blocks, "the assumed blocks do not add up"
    bounds = {slot: time for time, slot in believed._earliest}
    slots = sorted(assumed.slot for assumed in ranks.values())
    assert sorted(bounds) == slots, "a rank has no entry in the heap of times, or two"
    for belief, assumed in ranks.items():
        times = list(assumed.times.values())
        assert times == sorted(times), f"{belief}: its blocks are out of order"
        assert bounds[assumed.slot] <= times[0], f"{belief} may expire before its bound"
    return {belief: (set(assumed.times),) * 2 for belief, assumed in ranks.items()}


@check.register
def _(index: ArrayIndex) -> None:
    check(index.arrays)


@check.register
def _(state: ArrayState) -> None:
    check(state.resolver)
    odd = state.resolver.names
    check(state._odd.by_key, {name: odd.keys_of(name) for name in odd.keys})
    names, numbers = state._plain.all()
    assert odd.keys.keys().isdisjoint(names.tolist()), "a name is plain and odd"
    assert (state._plain.find_all(names) == numbers).all(), "a plain name is not found"
    held = np.zeros(len(names), np.bool_)
    for _, there in state._plain.holders(numbers):
        held |= there
    assert held.all(), "a plain name's block is not held"
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
    known = {key: set(names) for key, names in by_key._names.items()}
    assert names_of == known, "the odd names of the keys do not add up"


@check.register
def _(outside: Outside) -> None:
    counted, whole = outside.count(), outside.whole()
    assert counted == whole, f"{counted} bytes are counted, and owners have {whole}"


@check.register
def _(backlog: Backlog) -> None:
    assert backlog._bytes == sum(size for size, _ in backlog._waiting), "the bytes do not add up"
    if len(backlog._waiting) > 1:
        assert backlog._bytes <= backlog._max_bytes, "the messages have more than max_bytes"


@check.register
def _(rank: RankIngest) -> None:
    check(rank.stream)
    check(rank.state)
    is_waiting = rank.stream.state is StreamState.WAITING
    assert rank.is_connected is not is_waiting, "rank and stream differ on the connection"


@check.register
def _(index: MemoryIndex) -> None:
    pairs = {(slot, key) for key, slots in index._slots_of.items() for slot in slots}
    held = {(slot, key) for slot, keys in index._keys_of.items() for key in keys}
    assert pairs == held, "slots of keys and keys of slots disagree"
    assert all(index._slots_of.values()), "a key without holders is kept"
    assert index._ages.keys() == index._slots_of.keys(), (
        "some keys have no age, or some ages no key"
    )


@check.register
def _(orphans: Orphans) -> None:
    size = sum(orphan.size for orphan in orphans._waiting)
    assert orphans.bytes == size, "the waiting bytes do not add up"
    assert orphans.bytes <= orphans._max_bytes, "the waiting stores take more than max_bytes"
    waiting = set(orphans._waiting)
    for known in (orphans._by_parent, orphans._by_name):
        found = {orphan for some in known.values() for orphan in some}
        assert found == waiting, "a table of waiting stores disagrees with the others"


@check.register
def _(slots: SlotTable) -> None:
    live = {place: slot for slot, place in enumerate(slots._places) if place is not None}
    assert live == slots._slots, "slots and places disagree"
    in_use = any(slots._places[slot] is not None for slot in slots._free)
    assert not in_use, "a slot is free and in use"


@check.register
def _(segments: Segments, held: Collection[int]) -> None:
    for known in (segments._segments, segments._positions):
        assert known.keys() == set(held), (
            "segments are known of other keys than those that are held"
        )
    for key, segment in segments._segments.items():
        position = segments._positions[key]
        assert 0 <= position < SEGMENT, "a position lies outside of its segment"
        assert (position == 0) == (segment == key), "another key than the first names the segment"


@check.register
def _(ingest: Ingest) -> None:
    check(ingest.index)
    check(ingest.slots)
    for rank in ingest._ranks.values():
        check(rank)


@check.register
def _(holding: Holding, keys: dict[EngineHash, tuple[int, ...]]) -> None:
    assert min(holding.copies.values(), default=1) >= 1, "a name without copies is kept"
    assert holding.doubted <= holding.copies.keys(), "a name that is not held is in doubt"
    certain = holding.copies.keys() - holding.doubted
    assert holding.thinned <= certain, "a name that was removed last is not held, or in doubt"
    once = {name for name, count in holding.copies.items() if count == 1}
    twice = certain - (once - holding.thinned)
    assert holding.repeated <= twice, (
        "a name that a hit may have stored has one copy, or is in doubt"
    )
    copies = sum(holding.copies[name] for name in certain)
    assert holding.certain == copies, "the copies do not add up"
    standing = {(key, name) for name in holding.copies for key in keys[name]}
    known = [*holding.names.items()]
    known += ((key, name) for key, names in holding._more.items() for name in names)
    assert len(standing) == len(known), "the name of a key is kept twice, or not at all"
    assert standing == set(known), "the names of the keys do not add up"
    assert all(holding._more.values()), "a key without more names is kept"


@check.register
def _(names: Names) -> None:
    live = {name for holding in names.holdings.values() for name in holding.copies}
    assert live == names.keys.keys(), "the names with a key are not the live ones"
    kept = names.above.keys() | names.earlier.keys()
    assert kept <= live, "keys are kept for a name that is not live"
    keys = {name: names.keys_of(name) for name in live}
    for holding in names.holdings.values():
        check(holding, keys)


@check.register
def _(rank: RankSlots, held: Mapping[Spot, set[int]]) -> None:
    for spot in rank.certain.keys() | rank.doubted.keys():
        keys = held.get(spot, set())
        slots = {of[spot] for of in (rank.certain, rank.doubted) if spot in of}
        count = sum(map(rank._index.count, slots))
        assert count == len(keys), f"the slots of {spot} hold {count} keys, not {len(keys)}"
        stretches = rank._index.stretches(list(keys))
        found = sum(stop - start for slot, start, stop in stretches if slot in slots)
        assert found == len(keys), f"the slots of {spot} do not hold all of its keys"
    places = {spot for spot, keys in held.items() if keys}
    assert places <= rank.certain.keys(), "a place that holds keys has no slot"


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
    is_replaying = stream.state is StreamState.REPLAYING
    assert is_replaying or not stream._held, "batches are held although no replay runs"
    held = sum(len(payload) for _, payload in stream._held)
    assert stream._held_bytes == held, "the held bytes do not add up"
    is_exact = stream.trust.level is Level.EXACT
    assert not (is_replaying and is_exact), "exact while a replay is not over"
    check(stream.trust)
    is_applied = all(sequence < stream._next for sequence in stream._digests)
    assert is_applied, "a batch that is not applied has a digest"


@check.register
def _(trust: StreamTrust) -> None:
    is_exact = trust.level is Level.EXACT
    assert not (trust.stray and is_exact), "exact though what was unreadable may be a batch"


@check.register
def _(cache: PodCache) -> None:
    for rank in cache.ranks:
        check(rank)


@check.register
def _(index: ReferenceIndex) -> None:
    assert all(index._slots_of.values()), "a key without holders is kept"


def is_found(places: table.Places, words: table.Words, word: np.uint64, number: int) -> bool:
    at = table.seek(places, words, word, table.home(word, places.size))
    while at >= 0 and table.number_at(places, at) != number:
        at = table.seek(places, words, word, table.after(at, places.size))
    return at >= 0


is_found = jit.compiled(is_found) if jit.AHEAD is None else np.errstate(over="ignore")(is_found)


def check_blocks(blocks: Blocks, sets: Sets) -> None:
    top = int(blocks.state[TOP])
    numbers = np.flatnonzero(blocks.quarters[1:top, DEPTH] != FREED) + 1
    keys = blocks.records[numbers, 0]
    assert len(numbers) == int(blocks.state[LIVE]), "the number of blocks is wrong"
    assert len(np.unique(keys)) == len(keys), "two blocks have one key"
    for field, words, entries in (
        ("by_key", blocks.records, numbers),
        ("by_name", blocks.names, numbers[blocks.names[numbers, 0] != 0]),
    ):
        places = getattr(blocks, field)
        assert np.count_nonzero(places) == len(entries), f"{field} has too many entries, or too few"
        for number in entries.tolist():
            is_there = is_found(places, words, words[number, 0], number)
            assert is_there, f"{field} does not find block {number}"
    named = np.count_nonzero(blocks.names[numbers, 0])
    assert int(blocks.state[NAMED]) == named, "the number of names is wrong"
    held = blocks.halves[numbers, SET]
    assert (held != 0).all(), "a block that nobody holds is kept"
    uses: Any = np.bincount(held, minlength=1)
    used = np.flatnonzero(uses)
    assert (sets.uses[used] == uses[used]).all(), "the uses of sets do not add up"
    assert int(sets.state[USED]) == len(used), "sets that nobody has are kept"
    words_used = [tuple(row) for row in sets.words[used].tolist()]
    assert len(set(words_used)) == len(used), "a set is kept twice"
    counts = np.zeros(len(blocks.counts), np.int64)
    for number in used.tolist():
        counts[slots_of(sets.words[number] & sets.live)] += uses[number]
    assert (counts == blocks.counts).all(), "the counts of held keys do not add up"
