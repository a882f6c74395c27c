"""Names to keys: parents that turn up late, chunks, tails, moves, and doubt."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

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


def removed(*names: str, tier: Tier | None = Tier.GPU) -> Removed:
    return Removed(tuple(name_of(name.encode()) for name in names), tier)


def odd(name: bytes, tokens: list[int], size: int = 2, parent: bytes | None = None) -> Stored:
    return Stored((name,), parent, pack_tokens(tokens), size)


def chunk(first: int, last: int, *, size: int) -> Stored:
    return stored(first, last, tier=Tier.CPU, size=size, names="c")


Check = tuple[Callable[[Resolver], object], object]
"""What is asked of a resolver, and the answer that is expected."""


def holds(*positions: int, tier: Tier = Tier.GPU) -> Check:
    return partial(held, tier=tier), [*positions]


def counts(**expected: int) -> Check:
    return lambda resolver: {name: getattr(resolver.counts, name) for name in expected}, expected


def settles(capacity: int, *, can: bool = True) -> Check:
    return lambda resolver: resolver.can_settle(capacity), can


def drops(count: int) -> Check:
    return lambda resolver: len(resolver.settle()), count


NOTHING_WAITS = (lambda resolver: (len(resolver.orphans), resolver.orphans.bytes), (0, 0))
TWO_TOKENS = (lambda resolver: resolver.groups.layout.block_size, 2)
DOUBT = (Resolver.doubt, None)
ALL = range(6)
ON_CPU = partial(holds, tier=Tier.CPU)
MOVED = Moved(name_of(b"b1"), Tier.GPU, Tier.CPU)
X = odd(b"x", [99, 98])
WAITING = stored(1, 1, tier=Tier.CPU)

STORIES: dict[str, list[list[Event] | Check]] = {
    "a child waits for its parent and is adopted with all below it": [
        [stored(0, 0), stored(2, 3), stored(4, 5)], holds(0), counts(parentless=4), [stored(1, 1)], holds(*ALL), counts(adopted=4), NOTHING_WAITS,
    ],
    "what is removed while it waits is not adopted but still links its children": [[stored(0, 0), stored(2, 4)], [removed("b3")], counts(unknown_removals=0), [stored(1, 1)], holds(0, 1, 2, 4)],
    "a store that is wholly removed waits no longer": [[stored(0, 0), stored(2, 3), removed("b2"), removed("b3")], NOTHING_WAITS],
    "a removal from another tier does not touch what waits": [[stored(0, 0), stored(2, 2), removed("b2", tier=Tier.CPU)], [stored(1, 1)], holds(0, 1, 2)],
    "a clear lets what waits go": [[stored(0, 0), stored(2, 2), Cleared(), stored(0, 1)], holds(0, 1)],
    # LMCache stores chunks of several blocks, under names of its own.
    "a chunk of an offload tier holds the engine's own blocks": [
        [stored(0, 5), chunk(0, 0, size=6), chunk(1, 1, size=6)], ON_CPU(*ALL), [removed(*(f"b{n}" for n in ALL))], holds(), ON_CPU(*ALL), [removed("c1", tier=Tier.CPU)], ON_CPU(0, 1, 2),
    ],
    "a chunk that is no multiple of the block cannot be placed": [[stored(0, 5), chunk(0, 0, size=3)], ON_CPU(), counts(unplaced=1)],
    "a placeholder is placed by the name that the GPU gave it": [
        [stored(0, 2), Stored((name_of(b"b1"), name_of(b"b9")), None, None, 0, Tier.CPU)], ON_CPU(1), counts(unplaced=1), [removed("b1")], holds(0, 2), ON_CPU(1),
    ],
    "a block that moves is held where it went": [[stored(0, 1), MOVED], holds(0), ON_CPU(1), [removed("b1", "b0", tier=None)], holds(), ON_CPU(), counts(unknown_removals=0)],
    "the tail of a prompt neither counts nor changes the block size": [
        [stored(0, 1), odd(b"t", [9], 1, b"unknown"), Removed((b"t",))], holds(0, 1), TWO_TOKENS, counts(parentless=0),
    ],
    "a tail that is seen first gives way to the real block size": [[odd(b"t", TOKENS[:1], 1)], [stored(0, 5)], TWO_TOKENS, holds(*ALL)],
    # A child proves the whole prefix up to it; x is not heard of again. Of the two copies of block 0 one is proven.
    "after a doubt only what is proven is kept": [
        [stored(0, 2), stored(0, 0)], [X], DOUBT, [stored(2, 3)], settles(4, can=False), [stored(4, 5)], settles(4), drops(1), holds(*ALL), [removed("b0")], holds(*ALL[1:]),
    ],
    # The engine held two copies of x, and the older one, which is not known here, goes first.
    "after a doubt each removal of a known block asks for one more store": [[stored(0, 3), X, Removed((b"x",)), stored(4, 4)], holds(*range(5)), settles(6, can=False), [stored(5, 5)], settles(6)],
    "a rank with an offload tier does not settle by turn-over": [[stored(0, 1), Stored((name_of(b"b0"),), None, None, 0, Tier.CPU)], DOUBT, [stored(2, 5)], settles(1, can=False)],
    "an unknown capacity never settles": [DOUBT, [stored(0, 5)], settles(0, can=False)],
    "a block that moves while it waits for its parent is held where it went": [[stored(1, 1), MOVED, stored(0, 0)], holds(0), ON_CPU(1)],
    "a block that is removed while it waits in a slower tier is not held": [[WAITING, Removed(WAITING.hashes, None), stored(0, 0)], holds(0), ON_CPU()],
}  # fmt: skip
"""Events that come together, and what is so after them."""


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_resolving(story: list[list[Event] | Check]) -> None:
    resolver = new()
    for step in story:
        if isinstance(step, list):
            resolver.apply_all(step)
        else:
            look, expected = step
            assert look(resolver) == expected


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


def test_a_tier_with_as_many_names_as_keys_is_told_with_each_key_once() -> None:
    resolver = new()
    # A chunk has one name for two keys, and the third key has two names.
    third = replace(stored(2, 2, tier=Tier.CPU), parent=name_of(b"b1"))
    same = replace(third, hashes=(name_of(b"again"),))
    resolver.apply_all([stored(0, 2), stored(0, 0, tier=Tier.CPU, size=4, names="c"), third, same])
    assert held(resolver, Tier.CPU) == [0, 1, 2]
    keys, _ = resolver.names.chains()[Tier.CPU, 0]
    assert sorted(keys) == sorted(KEYS[:3])
