"""Engine hashes to keys, for one rank.

An engine names a block by a hash that is opaque to us, tells its tokens and its parent once, when it
is stored, and afterwards only the name. The resolver keeps for each live name the key that it stands
for, so that a child can be chained to its parent and a removal be followed.

One name may be announced several times (an engine keeps duplicates, and several tiers hold copies):
it is held in a tier until as many removals have come (`shared/engine-events.md`, 2.8). Several names
may also stand for one key. What goes out is therefore a change of what the rank's tier *holds*: a
key's first name arriving, a key's last name leaving.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from indexer.engines.event import Cleared, EngineHash, Event, Moved, Removed, Stored, Tier
from indexer.index import BrokenInvariantError
from indexer.key import Keyspace, chain

FULL_PREFIX_KINDS = frozenset(
    {"", "full_attention", "mla_attention", "sink_full_attention", "unknown"}
)
"""Kinds of groups whose blocks say that the prefix up to there is held (2.10)."""

ROOTS = 4096
"""Roots remembered (adapters times salts); past it they are computed anew."""


@dataclass(frozen=True, slots=True)
class Added:
    """A tier holds these keys from now on."""

    tier: Tier
    keys: list[int]


@dataclass(frozen=True, slots=True)
class Gone:
    """A tier no longer holds these keys."""

    tier: Tier
    keys: list[int]


@dataclass(frozen=True, slots=True)
class Emptied:
    """The rank holds nothing in any tier."""


Change = Added | Gone | Emptied


@dataclass(slots=True)
class ResolverCounts:
    """What happened so far; plain numbers, exported by the process."""

    stored_blocks: int = 0
    removed_blocks: int = 0
    clears: int = 0
    parentless: int = 0
    """Stored blocks whose parent is not known: they have no key."""
    unplaced: int = 0
    """Stored blocks announced without tokens whose hash is not known."""
    unknown_removals: int = 0
    other_groups: int = 0
    """Blocks of groups that do not stand for a whole prefix."""


@dataclass(slots=True)
class _TierState:
    copies: dict[EngineHash, int] = field(default_factory=dict)
    """How often each live name is held."""
    names: dict[int, int] = field(default_factory=dict)
    """How many live names stand for each key."""


class Resolver:
    """Follows one rank's names. `model` and `hash_seed` seed the keys (`indexer.key`)."""

    def __init__(self, model: str, hash_seed: str) -> None:
        self.counts = ResolverCounts()
        self.block_size = 0
        """Tokens a block, as the last store with tokens said; 0 before the first."""
        self._model = model
        self._hash_seed = hash_seed
        self._roots: dict[tuple[str, str, int], int] = {}
        self._keys: dict[EngineHash, int] = {}
        """The key of every name that is live in any tier."""
        self._tiers: dict[Tier, _TierState] = {}
        self._other_groups: set[int] = set()

    def apply(self, event: Event) -> list[Change]:
        """Follow one event; return what it changes, in order."""
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
        """Forget every name."""
        self._keys.clear()
        self._tiers.clear()
        self._other_groups.clear()
        return [Emptied()]

    def _store(self, event: Stored) -> list[Change]:
        if event.kind not in FULL_PREFIX_KINDS or (
            event.group and event.group in self._other_groups
        ):
            self._other_groups.add(event.group)
            self.counts.other_groups += len(event.hashes)
            return []
        self.counts.stored_blocks += len(event.hashes)
        known = self._keys
        if event.tokens is None:
            placed = [name for name in event.hashes if name in known]
            self.counts.unplaced += len(event.hashes) - len(placed)
            return self._hold(event.tier, [(name, known[name]) for name in placed])
        parent = self._parent_key(event)
        if parent is None:
            self.counts.parentless += len(event.hashes)
            return []
        self.block_size = event.block_size
        keys = chain(parent, event.tokens, event.block_size, event.extras)
        return self._hold(event.tier, zip(event.hashes, keys, strict=True))

    def _parent_key(self, event: Stored) -> int | None:
        if event.parent is not None:
            return self._keys.get(event.parent)
        seed = (event.lora, event.cache_salt, event.block_size)
        root = self._roots.get(seed)
        if root is None:
            if len(self._roots) >= ROOTS:
                self._roots.clear()
            root = Keyspace(
                model=self._model,
                block_size=event.block_size,
                lora=event.lora,
                cache_salt=event.cache_salt,
                hash_seed=self._hash_seed,
            ).root()
            self._roots[seed] = root
        return root

    def _hold(self, tier: Tier, blocks: Iterable[tuple[EngineHash, int]]) -> list[Change]:
        state = self._tiers.setdefault(tier, _TierState())
        copies, names = state.copies, state.names
        fresh = []
        for name, announced in blocks:
            held = copies.get(name, 0)
            copies[name] = held + 1
            if not held:
                # A name that is live elsewhere keeps the key that it was announced with first.
                key = self._keys.setdefault(name, announced)
                count = names.get(key, 0)
                names[key] = count + 1
                if not count:
                    fresh.append(key)
        return [Added(tier, fresh)] if fresh else []

    def _remove(self, event: Removed) -> list[Change]:
        if event.group in self._other_groups:
            return []
        self.counts.removed_blocks += len(event.hashes)
        return self._release(event.tier, event.hashes)

    def _release(self, tier: Tier, hashes: Iterable[EngineHash]) -> list[Change]:
        state = self._tiers.get(tier)
        gone = []
        for name in hashes:
            held = state.copies.get(name, 0) if state else 0
            if not state or not held:
                self.counts.unknown_removals += 1
                continue
            if held > 1:
                state.copies[name] = held - 1
                continue
            del state.copies[name]
            key = self._keys[name]
            state.names[key] -= 1
            if not state.names[key]:
                del state.names[key]
                gone.append(key)
            if not any(name in other.copies for other in self._tiers.values()):
                del self._keys[name]
        return [Gone(tier, gone)] if gone else []

    def _move(self, event: Moved) -> list[Change]:
        key = self._keys.get(event.hash)
        if key is None:
            self.counts.unknown_removals += 1
            return []
        held = self._hold(event.target, [(event.hash, key)])
        return held + self._release(event.source, [event.hash])

    def held(self) -> dict[Tier, set[int]]:
        """Return the keys that each tier holds."""
        return {tier: set(state.names) for tier, state in self._tiers.items()}

    def check(self) -> None:
        """Raise BrokenInvariantError where names, copies and keys disagree."""
        live = {name for state in self._tiers.values() for name in state.copies}
        if live != self._keys.keys():
            raise BrokenInvariantError("the names with a key are not the live ones")
        for tier, state in self._tiers.items():
            if min(state.copies.values(), default=1) < 1:
                raise BrokenInvariantError(f"a name without copies is kept in {tier}")
            names: dict[int, int] = {}
            for name in state.copies:
                names[self._keys[name]] = names.get(self._keys[name], 0) + 1
            if names != state.names:
                raise BrokenInvariantError(f"the names of {tier}'s keys do not add up")
