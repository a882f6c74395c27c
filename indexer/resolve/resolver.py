"""Engine hashes to keys, for one rank.

An engine names a block by a hash that is opaque to us, tells its tokens and its parent once, when it
is stored, and afterwards only the name. The resolver keeps for each live name the keys that it stands
for, so that a child can be chained to its parent and a removal be followed.

One name may be announced several times: an engine keeps duplicates, several tiers hold copies, and
each cache group has its own (`shared/engine-events.md`, 2.8, 2.10). It is held in a place (tier and
group) until as many removals have come. Several names may also stand for one key. What goes out is
therefore a change of what a place *holds*: a key's first name arriving, a key's last name leaving.

Doubt. Where something was missed, any name known till then may be gone, and none may be believed
until something that came later proves it: a store of the name, or of a child (a request that stores a
child holds its whole prefix). `settle` drops what is still unproven once everything that was cached
then must have been given to other content.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from indexer.engines.cache_groups import TRTLLM_WINDOW, WINDOW_KINDS, Group, Layout, Way
from indexer.engines.event import Cleared, EngineHash, Event, Moved, Removed, Stored, Tier
from indexer.index.contract import Links
from indexer.index.orphans import Orphans, Waiting
from indexer.invariant import BrokenInvariantError
from indexer.keys.key import Keyspace, chain
from indexer.keys.segment import Segments
from indexer.resolve.holding import Holding
from indexer.resolve.saved import SavedHolding, SavedResolver

ROOTS = 4096
"""Roots remembered (adapters times salts); past it they are computed anew."""

Spot = tuple[Tier, int]
"""A tier and a cache group: one place in which a rank holds blocks."""


@dataclass(frozen=True, slots=True)
class Added:
    """A place holds these keys from now on."""

    spot: Spot
    keys: list[int]
    segments: Sequence[int] = ()
    """The segment of each, where segments are kept (`Resolver.segments`)."""
    links: Links = ()


@dataclass(frozen=True, slots=True)
class Gone:
    """A place no longer holds these keys."""

    spot: Spot
    keys: list[int]
    segments: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Emptied:
    """The rank holds nothing anywhere."""


Change = Added | Gone | Emptied


@dataclass(slots=True)
class ResolverCounts:
    """What happened so far; plain numbers, exported by the process."""

    stored_blocks: int = 0
    removed_blocks: int = 0
    clears: int = 0
    parentless: int = 0
    """Stored blocks whose parent is not known: they have no key yet."""
    adopted: int = 0
    """Those of them whose parent turned up."""
    unplaced: int = 0
    """Stored blocks announced without tokens whose hash is not known, or in sizes that do not fit."""
    unknown_removals: int = 0
    again: int = 0
    """Blocks stored where they were held already, although the engine keeps each once."""
    other_groups: int = 0
    """Blocks of groups that say nothing of what can be reused."""


class Resolver:
    """Follows one rank's names. `model` and `hash_seed` seed the keys (`indexer.keys.key`).

    `orphan_bytes` bounds the stores that wait for their parent, `waiting` those of all ranks that share
    an index; None where it shares none.

    `segments` is told every chain, and knows the segment of every key that is held
    (`indexer.keys.segment`); None where nobody asks for it.
    """

    def __init__(
        self,
        model: str,
        hash_seed: str,
        *,
        orphan_bytes: int,
        waiting: Waiting | None = None,
        segments: Segments | None = None,
    ) -> None:
        self.counts = ResolverCounts()
        self.segments = segments
        self.layout = Layout()
        """The cache groups seen in this life."""
        self.orphans = Orphans(orphan_bytes, waiting, self._lost_orphans)
        self.stored_since_doubt = 0
        """Names that the fastest tier began to hold since something was missed or given up."""
        self._model = model
        self._hash_seed = hash_seed
        self._roots: dict[tuple[str, str, int], int] = {}
        self._keys: dict[EngineHash, int] = {}
        """The last key of every name that is live anywhere."""
        self._earlier: dict[EngineHash, tuple[int, ...]] = {}
        """The keys before it, of names that stand for several blocks (an offload tier's chunks)."""
        self._above: dict[EngineHash, int] = {}
        """The key of the block before each name's first, but for the beginnings of prompts."""
        self._holdings: dict[Spot, Holding] = {}
        self._firm: set[int] = set()
        """Groups whose block size was seen on more than a lone block."""
        self._parted: set[int] = set()
        """Groups with blocks of several sizes: one may go by the names of its parts too."""

    def apply_all(self, events: Sequence[Event]) -> list[Change]:
        """Follow the events of one batch; return what they change, in order."""
        changes: list[Change] = []
        before = self.layout.block_size
        for event in events:
            if isinstance(event, Stored):
                self._learn(event)
        if before and self.layout.block_size != before:
            # Keys of another size say nothing of the new one's; what was known cannot be kept.
            changes += self.empty()
        for event in events:
            changes += self._apply(event)
        return changes

    def _apply(self, event: Event) -> list[Change]:
        if isinstance(event, Stored):
            return self._store(event)
        if isinstance(event, Removed):
            return self._remove(event)
        if isinstance(event, Moved):
            return self._move(event)
        assert isinstance(event, Cleared)
        self.counts.clears += 1
        return self.empty()

    def empty(self) -> list[Change]:
        """Forget every name; the groups stay what they are."""
        self._keys.clear()
        self._earlier.clear()
        self._above.clear()
        self._holdings.clear()
        self.orphans.clear()
        self.stored_since_doubt = 0
        if self.segments is not None:
            self.segments.clear()
        return [Emptied()]

    def forget(self) -> list[Change]:
        """Forget the rank's whole life."""
        self.layout = Layout()
        self._firm.clear()
        self._parted.clear()
        return self.empty()

    def _learn(self, event: Stored) -> None:
        """Learn the groups and their block sizes from stores in the fastest tier.

        A lone block may be the tail of a prompt, in a smaller size than the group's (2.8, 3), so
        its size holds only until a larger one shows.
        """
        number = event.group
        if event.tier is not Tier.GPU or event.block_size < 1:
            return
        known = self.layout.groups.get(number)
        if known is not None and event.block_size != known.block_size:
            self._parted.add(number)
        if known is None or (event.block_size > known.block_size and number not in self._firm):
            known = Group(event.kind, event.block_size, event.window)
            self.layout = Layout({**self.layout.groups, number: known}, event.lookahead)
        if len(event.hashes) > 1 and event.block_size == known.block_size:
            self._firm.add(number)

    def _store(self, event: Stored) -> list[Change]:
        layout = self.layout
        group = layout.groups.get(event.group, Group(event.kind, event.block_size or 1))
        spot = (event.tier, event.group)
        way = layout.way(event.group, group)
        if way is Way.LEFT_OUT:
            self.counts.other_groups += len(event.hashes)
            return []
        if way is Way.BY_NAME or event.tokens is None:
            return self._store_known(event, spot, group)
        size = layout.block_size
        if not size or event.block_size % size or (event.extras and event.block_size != size):
            self.counts.unplaced += len(event.hashes)
            return []
        parent = self._parent_key(event, size)
        if parent is None:
            return self._store_orphan(event, spot)
        return self._store_chained(event, parent, size)

    def _store_chained(self, event: Stored, parent: int, size: int) -> list[Change]:
        """Hold a store whose parent is known, and whatever waited for any of its blocks."""
        assert event.tokens is not None
        changes: list[Change] = []
        chained: list[int] = []
        waiting = [(event, parent, frozenset[int]())]
        while waiting:
            stored, above, gone = waiting.pop()
            assert stored.tokens is not None
            keys = chain(above, stored.tokens, size, stored.extras)
            if self.segments is not None:
                self.segments.chained(above, keys)
                chained += keys
            ratio = stored.block_size // size
            changes += self._hold_chain(stored, above, keys, ratio, gone)
            if self.orphans:
                for position, name in enumerate(stored.hashes):
                    last = keys[(position + 1) * ratio - 1]
                    for orphan in self.orphans.of(name):
                        self.counts.adopted += len(orphan.event.hashes) - len(orphan.gone)
                        waiting.append((orphan.event, last, frozenset(orphan.gone)))
        # Of blocks that were removed while they waited, only what is chained to them is held.
        self._forget_unheld_keys(chained)
        return changes

    def _forget_unheld_keys(self, keys: Iterable[int]) -> None:
        """Forget the segments of those keys that no place holds."""
        if self.segments is None:
            return
        for key in keys:
            if not self._is_held(key):
                self.segments.forget(key)

    def _segments_of(self, keys: Collection[int]) -> Sequence[int]:
        return () if self.segments is None else self.segments.of_all(keys)

    def _hold_chain(
        self, event: Stored, above: int, keys: list[int], ratio: int, gone: frozenset[int]
    ) -> list[Change]:
        """Give each block its keys and hold it, but for those at the positions `gone`.

        `above` is the key before them.
        """
        held = []
        known, aboves = self._keys, self._above
        has_above = event.parent is not None
        for position, (name, last) in enumerate(
            zip(event.hashes, keys[ratio - 1 :: ratio], strict=True)
        ):
            if position not in gone:
                held.append(name)
                if name not in known:
                    known[name] = last
                    if ratio > 1:
                        earlier = keys[position * ratio : (position + 1) * ratio - 1]
                        self._earlier[name] = tuple(earlier)
                    if has_above:
                        aboves[name] = above
            above, has_above = last, True
        if event.tier is Tier.GPU and event.parent is not None:
            self._prove_prefix((event.tier, event.group), event.parent)
        if event.once:
            self.counts.again += self._certain((event.tier, event.group), held)
        spot = (event.tier, event.group)
        return self._hold(spot, held, may_be_hit=self._may_be_hit(event, held))

    def _may_be_hit(self, event: Stored, held: Sequence[EngineHash]) -> bool:
        """Whether a store may be a hit that is announced again (`shared/engine-events.md`, 2.8).

        A hit begins at the prompt's beginning, and all of it is cached; in a window, its end.
        """
        if event.tier is not Tier.GPU:
            return False
        if self._is_window(event.group):
            return event.parent is None or event.is_rest
        return event.parent is None and bool(self._certain((event.tier, event.group), held[:1]))

    def _certain(self, spot: Spot, names: Sequence[EngineHash]) -> int:
        """Return how many names are certainly held in a place."""
        holding = self._holdings.get(spot)
        if holding is None:
            return 0
        return sum(name in holding.copies and name not in holding.doubted for name in names)

    def _store_known(self, event: Stored, spot: Spot, group: Group) -> list[Change]:
        """Hold those names whose key is known from elsewhere."""
        placed = [name for name in event.hashes if name in self._keys]
        if group.kind not in WINDOW_KINDS:
            self.counts.unplaced += len(event.hashes) - len(placed)
        return self._hold(spot, placed, may_be_hit=self._may_be_hit(event, placed))

    def _store_orphan(self, event: Stored, spot: Spot) -> list[Change]:
        if all(name in self._keys for name in event.hashes):
            return self._hold(spot, event.hashes)
        self.orphans.keep(event)
        self.counts.parentless += len(event.hashes)
        if event.tier is Tier.GPU:
            self.stored_since_doubt += len(event.hashes)
        return []

    def _lost_orphans(self) -> None:
        """Take note that blocks that are not known may be cached, as after a gap."""
        self.stored_since_doubt = 0

    def _parent_key(self, event: Stored, size: int) -> int | None:
        if event.parent is not None:
            return self._keys.get(event.parent)
        return self._root(event.lora, event.cache_salt, size)

    def _root(self, lora: str, cache_salt: str, size: int) -> int:
        seed = (lora, cache_salt, size)
        root = self._roots.get(seed)
        if root is None:
            if len(self._roots) >= ROOTS:
                self._roots.clear()
            root = Keyspace(
                model=self._model,
                block_size=size,
                lora=lora,
                cache_salt=cache_salt,
                hash_seed=self._hash_seed,
            ).root()
            self._roots[seed] = root
        return root

    def _keys_of(self, name: EngineHash) -> tuple[int, ...]:
        return (*self._earlier.get(name, ()), self._keys[name])

    def _hold(
        self, spot: Spot, held: Sequence[EngineHash], *, may_be_hit: bool = False
    ) -> list[Change]:
        holding = self._holdings.get(spot)
        if holding is None:
            holding = self._holdings[spot] = Holding()
        fresh: list[int] = []
        known = holding.certain_names
        links: list[tuple[int, int]] = []
        for name in held:
            more = holding.hold(name, self._keys_of(name), may_be_hit=may_be_hit)
            if more:
                above = self._key_above(name)
                if above != (fresh[-1] if fresh else 0):
                    links.append((len(fresh), above))
                fresh += more
        self.counts.stored_blocks += len(held)
        if spot[0] is Tier.GPU:
            # One that is held already may be a hit that is announced again: no block was given away.
            self.stored_since_doubt += holding.certain_names - known
        return [Added(spot, fresh, self._segments_of(fresh), links)] if fresh else []

    def _key_above(self, name: EngineHash) -> int:
        """Return the key before a name's first; 0 where there is none, or none that is held."""
        above = self._above.get(name, 0)
        return above if above and self._is_held(above) else 0

    def _is_held(self, key: int) -> bool:
        return any(key in holding.names for holding in self._holdings.values())

    def _remove(self, event: Removed) -> list[Change]:
        self.counts.removed_blocks += len(event.hashes)
        if event.tier is not None:
            return self._release((event.tier, event.group), event.hashes)
        changes = []
        for name in event.hashes:
            tiers = (tier for tier in Tier if name in self._copies((tier, event.group)))
            changes += self._release((next(tiers, Tier.GPU), event.group), [name])
        return changes

    def _copies(self, spot: Spot) -> dict[EngineHash, int]:
        holding = self._holdings.get(spot)
        return holding.copies if holding else {}

    def _release(self, spot: Spot, hashes: Iterable[EngineHash]) -> list[Change]:
        holding = self._holdings.get(spot)
        gone: list[int] = []
        for name in hashes:
            if holding and name in holding.copies:
                gone += holding.release(name, self._keys_of(name))
                if name not in holding.copies:
                    self._forget_unheld(name)
            elif not self.orphans.remove(name, *spot):
                self.counts.unknown_removals += 1
        return self._gone(spot, gone)

    def _gone(self, spot: Spot, gone: list[int]) -> list[Change]:
        if not gone:
            return []
        change = Gone(spot, gone, self._segments_of(gone))
        self._forget_unheld_keys(gone)
        return [change]

    def _forget_unheld(self, name: EngineHash) -> None:
        if not any(name in holding.copies for holding in self._holdings.values()):
            del self._keys[name]
            self._earlier.pop(name, None)
            self._above.pop(name, None)

    def _move(self, event: Moved) -> list[Change]:
        if event.hash not in self._keys:
            self.counts.unknown_removals += 1
            return []
        held = self._hold((event.target, event.group), [event.hash])
        return held + self._release((event.source, event.group), [event.hash])

    def doubt(self) -> None:
        """Take note that something was missed: no name known now is certain any more."""
        for holding in self._holdings.values():
            holding.doubt()
        # What waits may be gone too, and nothing could prove it once it is adopted.
        self.orphans.clear()
        self.stored_since_doubt = 0

    def _prove_prefix(self, spot: Spot, name: EngineHash) -> None:
        """Take note that a request holds a block, and so the whole prefix up to there.

        The content of that prefix is certain, its names are not: where several of the place stand for
        one content, any of them may be gone.
        """
        holding = self._holdings.get(spot)
        current: EngineHash | None = name
        while holding and current is not None and holding.prove(current):
            current = holding.sole(self._above.get(current, 0))

    def can_settle(self, capacity: int) -> bool:
        """Whether everything that was cached at the last doubt must be gone or proven by now.

        An engine gives its blocks to new content in the order in which they were last used, so once
        as many have been stored as it has, every block that was not used again is gone
        (`shared/engine-events.md`, 4.2). A block of a slower tier outlives that.
        """
        if not 0 < capacity <= self.stored_since_doubt or len(self.orphans):
            return False
        return all(
            tier is Tier.GPU or not held.copies for (tier, _), held in self._holdings.items()
        )

    def settle(self) -> list[Change]:
        """Drop every name that is still in doubt."""
        changes: list[Change] = []
        for spot, holding in self._holdings.items():
            gone: list[int] = []
            for name in list(holding.doubted):
                gone += holding.drop(name, self._keys_of(name))
                self._forget_unheld(name)
            changes += self._gone(spot, gone)
        return changes

    def copies(self) -> int | None:
        """Return how many blocks of the fastest tier are taken; None where there are several pools.

        Every copy counts, and every group, whose blocks come out of one pool. Left out is whatever might
        count a block that is not taken, or one twice: names in doubt, and groups that name parts of
        blocks too (2.8, 3).
        """
        kinds = [group.kind for group in list(self.layout.groups.values())]
        if kinds.count(TRTLLM_WINDOW) > 1:
            return None  # each window has its own (6.2)
        return sum(map(self._copies_in, list(self._holdings)))

    def _copies_in(self, spot: Spot) -> int:
        tier, group = spot
        if tier is not Tier.GPU or group in self._parted:
            return 0
        holding = self._holdings.get(spot)
        return holding.certain if holding else 0

    def may_show_hits(self) -> bool:
        """Whether something may be shown only because a hit was announced as a store.

        A name that was removed since is gone then, and a window does not hold the blocks before it that
        the hit named.
        """
        return any(
            holding.repeated if self._is_window(group) else holding.repeated & holding.thinned
            for (_, group), holding in list(self._holdings.items())
            if holding.repeated
        )

    def _is_window(self, group: int) -> bool:
        known = self.layout.groups.get(group)
        return known is not None and known.kind in WINDOW_KINDS

    def give_up_excess(self) -> list[Change]:
        """Let the fastest tier hold only what must be there although hits were announced too.

        A hit and a store both say that a block is there at that time, so a name is certain to be held
        unless something was removed of it since. Only windows are announced with blocks that they do
        not hold: those before the window.
        """
        changes: list[Change] = []
        given_up = 0
        for spot, holding in self._holdings.items():
            tier, group = spot
            if tier is not Tier.GPU:
                continue
            is_window = self._is_window(group)
            unsure = holding.copies.keys() - holding.doubted if is_window else holding.thinned
            gone: list[int] = []
            for name in list(unsure):
                gone += holding.drop(name, self._keys_of(name))
                self._forget_unheld(name)
                given_up += 1
            holding.one_copy_each()
            changes += self._gone(spot, gone)
        # Their next store may be a hit, for which no block is given away.
        self.stored_since_doubt = -given_up
        return changes

    def save(self) -> SavedResolver:
        """Return what a later process needs to go on from here."""
        return SavedResolver(
            groups=dict(self.layout.groups),
            lookahead=self.layout.lookahead,
            firm=sorted(self._firm),
            parted=sorted(self._parted),
            stored_since_doubt=self.stored_since_doubt,
            keys=self._keys,
            earlier=self._earlier,
            above=self._above,
            holdings=[
                SavedHolding(
                    tier,
                    group,
                    holding.copies,
                    list(holding.doubted),
                    list(holding.thinned),
                    list(holding.repeated),
                )
                for (tier, group), holding in self._holdings.items()
            ],
            segments=None if self.segments is None else self.segments.save(),
        )

    def restore(self, saved: SavedResolver) -> list[Change]:
        """Go on from what another process saved; return what is held then.

        Raises ValueError where segments are to be known, and it did not know them.
        """
        if self.segments is not None:
            if saved.segments is None:
                raise ValueError("the names were saved without the segments of their keys")
            self.segments.restore(saved.segments)
        saved = saved.one_by_one()
        self.layout = Layout(saved.groups, saved.lookahead)
        self._firm = set(saved.firm)
        self._parted = set(saved.parted)
        self.stored_since_doubt = saved.stored_since_doubt
        self._keys, self._earlier, self._above = saved.keys, saved.earlier, saved.above
        changes: list[Change] = []
        for one in saved.holdings:
            holding = self._holdings[one.tier, one.group] = Holding()
            holding.restore(one, self._keys, self._earlier)
            if holding.names:
                keys = list(holding.names)
                changes.append(Added((one.tier, one.group), keys, self._segments_of(keys)))
        return changes

    def places(self) -> dict[Spot, Collection[int]]:
        """Return the keys that each place holds, as they are and change."""
        return {spot: holding.names.keys() for spot, holding in self._holdings.items()}

    def chains(self) -> dict[Spot, tuple[list[int], list[tuple[int, int]]]]:
        """Return the keys that each place holds, and where one does not follow the one before it."""
        known, aboves = self._keys, self._above
        found: dict[Spot, tuple[list[int], list[tuple[int, int]]]] = {}
        for spot, holding in self._holdings.items():
            links: list[tuple[int, int]] = []
            if len(holding.names) != len(holding.copies):
                # Chunks of several blocks, or several names for a key: about in order.
                found[spot] = list(holding.names), links
                continue
            keys = [known[name] for name in holding.copies]
            before = 0
            for at, (name, key) in enumerate(zip(holding.copies, keys, strict=True)):
                if aboves.get(name, 0) != before:
                    above = self._key_above(name)
                    if at or above:
                        links.append((at, above))
                before = key
            found[spot] = keys, links
        return found

    def held(self) -> dict[Spot, set[int]]:
        """Return the keys that each place holds, as they are now."""
        return {spot: set(keys) for spot, keys in self.places().items()}

    def check(self) -> None:
        """Raise BrokenInvariantError where names, copies and keys disagree."""
        self.orphans.check()
        live = {name for holding in self._holdings.values() for name in holding.copies}
        if live != self._keys.keys():
            raise BrokenInvariantError("the names with a key are not the live ones")
        if not self._above.keys() | self._earlier.keys() <= live:
            raise BrokenInvariantError("something is kept of a name that is not live")
        keys = {name: self._keys_of(name) for name in live}
        for holding in self._holdings.values():
            holding.check(keys)
        if self.segments is not None:
            self.segments.check({key for keys in self.places().values() for key in keys})
