"""Names to keys: parents that turn up late, chunks, tails, moves, and doubt."""

from dataclasses import replace

from tests.indexer.consistent import check
from warmpath.indexer.engines.event import Cleared, Event, Moved, Removed, Stored, Tier, name_of
from warmpath.indexer.index.orphans import Orphans
from warmpath.indexer.keys.key import Keyspace, chain, pack_tokens
from warmpath.indexer.resolve.resolver import Resolver

TOKENS = list(range(1, 13))
KEYS = chain(Keyspace(model="m", block_size=2).root(), pack_tokens(TOKENS), 2)


def new(*events: Event, orphan_bytes: int = 1 << 20) -> Resolver:
    resolver = Resolver("m", "", orphan_bytes=orphan_bytes)
    resolver.apply_all(events)
    return resolver


def stored(
    first: int, last: int, *, tier: Tier = Tier.GPU, size: int = 2, names: str = "b"
) -> Stored:
    """Store blocks `first` to `last` of the tokens; a block's name is its number."""
    tokens = TOKENS[first * size : (last + 1) * size]
    hashes = tuple(name_of(f"{names}{number}".encode()) for number in range(first, last + 1))
    parent = name_of(f"{names}{first - 1}".encode()) if first else None
    return Stored(hashes, parent, pack_tokens(tokens), size, tier)


def held(resolver: Resolver, tier: Tier = Tier.GPU) -> list[int]:
    """Return the positions of the held keys."""
    check(resolver)
    return sorted(KEYS.index(key) for key in resolver.names.held().get((tier, 0), ()))


def test_a_child_waits_for_its_parent_and_is_adopted_with_all_below_it() -> None:
    resolver = new(stored(0, 0), stored(2, 3), stored(4, 5))
    assert held(resolver) == [0]
    assert resolver.counts.parentless == 4
    resolver.apply_all([stored(1, 1)])
    assert held(resolver) == [0, 1, 2, 3, 4, 5]
    assert resolver.counts.adopted == 4
    assert len(resolver.orphans) == 0


def test_what_is_removed_while_it_waits_is_not_adopted_but_still_links_its_children() -> None:
    resolver = new(stored(0, 0), stored(2, 4))
    resolver.apply_all([Removed((name_of(b"b3"),))])
    assert resolver.counts.unknown_removals == 0
    resolver.apply_all([stored(1, 1)])
    assert held(resolver) == [0, 1, 2, 4]


def test_a_store_that_is_wholly_removed_waits_no_longer() -> None:
    resolver = new(
        stored(0, 0), stored(2, 3), Removed((name_of(b"b2"),)), Removed((name_of(b"b3"),))
    )
    assert len(resolver.orphans) == 0
    assert resolver.orphans.bytes == 0


def test_a_removal_from_another_tier_does_not_touch_what_waits() -> None:
    resolver = new(stored(0, 0), stored(2, 2), Removed((name_of(b"b2"),), Tier.CPU))
    resolver.apply_all([stored(1, 1)])
    assert held(resolver) == [0, 1, 2]


def test_what_waits_is_bounded_and_the_oldest_goes_first() -> None:
    resolver = new(stored(0, 0), stored(2, 2), stored(4, 4), stored(5, 5), orphan_bytes=2500)
    assert resolver.orphans.bytes <= 2500
    assert resolver.orphans.dropped == 1
    resolver.apply_all([stored(1, 1), stored(3, 3)])
    assert 2 not in held(resolver)


def test_a_store_past_the_whole_bound_is_not_kept() -> None:
    orphans = Orphans(1000)
    orphans.keep(stored(1, 3))
    assert orphans.dropped == 3
    assert len(orphans) == 0
    check(orphans)


def test_all_that_a_waiting_store_keeps_counts() -> None:
    resolver = new(orphan_bytes=5000)
    plain = stored(2, 2)
    for large in (replace(plain, extras=[b"x" * 6000]), replace(plain, tokens=bytes(6000))):
        resolver.apply_all([stored(0, 0), large])
        assert not resolver.orphans
    assert resolver.orphans.dropped == 2


def test_blocks_that_were_let_go_while_they_waited_are_outlived_before_a_rank_heals() -> None:
    resolver = new(stored(0, 0), stored(0, 1), orphan_bytes=100)
    assert resolver.can_settle(2)
    resolver.apply_all([stored(4, 4)])
    assert not resolver.can_settle(2)
    resolver.apply_all([stored(1, 2)])
    assert resolver.can_settle(2)


def test_a_clear_lets_what_waits_go() -> None:
    resolver = new(stored(0, 0), stored(2, 2), Cleared(), stored(0, 1))
    assert held(resolver) == [0, 1]


def test_a_chunk_of_an_offload_tier_holds_the_engines_own_blocks() -> None:
    """LMCache stores chunks of several blocks, under names of its own (`engine-events.md`, 6.3)."""
    resolver = new()
    chunk = [
        stored(0, 0, tier=Tier.CPU, size=6, names="c"),
        stored(1, 1, tier=Tier.CPU, size=6, names="c"),
    ]
    resolver.apply_all([stored(0, 5), *chunk])
    assert held(resolver, Tier.CPU) == [0, 1, 2, 3, 4, 5]
    resolver.apply_all([Removed(tuple(name_of(f"b{n}".encode()) for n in range(6)))])
    assert held(resolver) == []
    assert held(resolver, Tier.CPU) == [0, 1, 2, 3, 4, 5]
    resolver.apply_all([Removed((name_of(b"c1"),), Tier.CPU)])
    assert held(resolver, Tier.CPU) == [0, 1, 2]


def test_a_chunk_that_is_no_multiple_of_the_block_cannot_be_placed() -> None:
    resolver = new(stored(0, 5), stored(0, 0, tier=Tier.CPU, size=3, names="c"))
    assert held(resolver, Tier.CPU) == []
    assert resolver.counts.unplaced == 1


def test_a_placeholder_is_placed_by_the_name_that_the_gpu_gave_it() -> None:
    resolver = new()
    placeholder = Stored((name_of(b"b1"), name_of(b"b9")), None, None, 0, Tier.CPU)
    resolver.apply_all([stored(0, 2), placeholder])
    assert held(resolver, Tier.CPU) == [1]
    assert resolver.counts.unplaced == 1
    resolver.apply_all([Removed((name_of(b"b1"),))])
    assert held(resolver) == [0, 2]
    assert held(resolver, Tier.CPU) == [1]


def test_a_block_that_moves_is_held_where_it_went() -> None:
    resolver = new(stored(0, 1), Moved(name_of(b"b1"), Tier.GPU, Tier.CPU))
    assert held(resolver) == [0]
    assert held(resolver, Tier.CPU) == [1]
    resolver.apply_all([Removed((name_of(b"b1"), name_of(b"b0")), None)])
    assert held(resolver) == []
    assert held(resolver, Tier.CPU) == []
    assert resolver.counts.unknown_removals == 0


def test_the_tail_of_a_prompt_neither_counts_nor_changes_the_block_size() -> None:
    resolver = new()
    tail = Stored((b"t",), b"unknown", pack_tokens([9]), 1)
    resolver.apply_all([stored(0, 1), tail, Removed((b"t",))])
    assert held(resolver) == [0, 1]
    assert resolver.groups.layout.block_size == 2
    assert resolver.counts.parentless == 0


def test_a_tail_that_is_seen_first_gives_way_to_the_real_block_size() -> None:
    resolver = new(Stored((b"t",), None, pack_tokens(TOKENS[:1]), 1))
    resolver.apply_all([stored(0, 5)])
    assert resolver.groups.layout.block_size == 2
    assert held(resolver) == [0, 1, 2, 3, 4, 5]


def test_after_a_doubt_only_what_is_proven_is_kept() -> None:
    resolver = new(stored(0, 2), stored(0, 0))
    other = [Stored((b"x",), None, pack_tokens([99, 98]), 2)]
    resolver.apply_all(other)
    resolver.doubt()
    # A child proves the whole prefix up to it; x is not heard of again.
    resolver.apply_all([stored(2, 3)])
    assert not resolver.can_settle(4)
    resolver.apply_all([stored(4, 5)])
    assert resolver.can_settle(4)
    gone = resolver.settle()
    assert len(gone) == 1
    assert held(resolver) == [0, 1, 2, 3, 4, 5]
    # The first block was known twice; of that, one copy is proven.
    resolver.apply_all([Removed((name_of(b"b0"),))])
    assert held(resolver) == [1, 2, 3, 4, 5]


def test_after_a_doubt_each_removal_of_a_known_block_asks_for_one_more_store() -> None:
    """The engine held two copies of x, and the older one, which is not known here, goes first."""
    x = Stored((b"x",), None, pack_tokens([99, 98]), 2)
    resolver = new(stored(0, 3), x, Removed((b"x",)), stored(4, 4))
    assert len(held(resolver)) == 5
    assert not resolver.can_settle(6), "the other copy of x is still there"
    resolver.apply_all([stored(5, 5)])
    assert resolver.can_settle(6), "the cache is full of blocks that are held here"


def test_a_rank_with_an_offload_tier_does_not_settle_by_turn_over() -> None:
    resolver = new(stored(0, 1), Stored((name_of(b"b0"),), None, None, 0, Tier.CPU))
    resolver.doubt()
    resolver.apply_all([stored(2, 5)])
    assert not resolver.can_settle(1)


def test_an_unknown_capacity_never_settles() -> None:
    resolver = new()
    resolver.doubt()
    resolver.apply_all([stored(0, 5)])
    assert not resolver.can_settle(0)


def test_check_finds_a_name_without_a_key() -> None:
    resolver = new(stored(0, 0))
    resolver.names.keys.clear()
    try:
        check(resolver)
    except AssertionError:
        return
    raise AssertionError("a contradiction is found")


def test_a_tier_with_as_many_names_as_keys_is_told_with_each_key_once() -> None:
    resolver = new()
    # A chunk has one name for two keys, and the third key has two names.
    third = replace(stored(2, 2, tier=Tier.CPU), parent=name_of(b"b1"))
    same = replace(third, hashes=(name_of(b"again"),))
    resolver.apply_all([stored(0, 2), stored(0, 0, tier=Tier.CPU, size=4, names="c"), third, same])
    assert held(resolver, Tier.CPU) == [0, 1, 2]
    keys, _ = resolver.names.chains()[Tier.CPU, 0]
    assert sorted(keys) == sorted(KEYS[:3])


def test_a_block_that_moves_while_it_waits_for_its_parent_is_held_where_it_went() -> None:
    resolver = new(stored(1, 1), Moved(name_of(b"b1"), Tier.GPU, Tier.CPU), stored(0, 0))
    assert held(resolver) == [0]
    assert held(resolver, Tier.CPU) == [1]


def test_a_block_that_is_removed_while_it_waits_in_a_slower_tier_is_not_held() -> None:
    resolver = new()
    waiting = stored(1, 1, tier=Tier.CPU)
    resolver.apply_all([waiting, Removed(waiting.hashes, None), stored(0, 0)])
    assert held(resolver) == [0]
    assert held(resolver, Tier.CPU) == []
