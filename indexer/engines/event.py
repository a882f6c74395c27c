"""Neutral events, into which each engine's codec decodes its bytes.

An engine's own name (hash) for a block is opaque: it only identifies the block in later events. Where an
engine announces a block without its tokens (an offload tier's placeholder, a group that skips blocks),
`tokens` is None, and the block gets a key only if its name is already known.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

import xxhash

from warmpath.indexer.keys.key import pack_tokens

EngineHash = int
"""An engine's name for a block: an unsigned 64-bit integer (`name_of`)."""

UINT64 = (1 << 64) - 1


def name_of(value: int | bytes) -> EngineHash:
    """Return a block's name: a signed integer as an unsigned one, a digest hashed to 64 bits.

    Two digests get the same name with a chance of one in 2^64; engines' own integers collide as rarely.
    """
    return value & UINT64 if isinstance(value, int) else xxhash.xxh64_intdigest(value)


def names_of(values: Iterable[int | bytes]) -> tuple[EngineHash, ...]:
    """Return the names of blocks."""
    return tuple(map(name_of, values))


class MalformedEventError(ValueError):
    """A batch, or an event in it, breaks its engine's format; nothing of the batch is applied."""


class Tier(StrEnum):
    """Where a block lies, fastest first."""

    GPU = "gpu"
    CPU = "cpu"
    DISK = "disk"
    REMOTE = "remote"


def _tier(field: str, text: str) -> Tier:
    if text not in set(Tier):
        raise ValueError(f"{field} is {text!r}; it must be one of {', '.join(Tier)}")
    return Tier(text)


@dataclass(frozen=True, slots=True)
class Stored:
    """Blocks became cached, each the child of the one before it."""

    hashes: tuple[EngineHash, ...]
    parent: EngineHash | None
    """The block before the first one; None where the first one starts its sequence."""
    tokens: bytes | None
    """`len(hashes) * block_size` ids, packed as little-endian uint32; None where not announced."""
    block_size: int
    tier: Tier = Tier.GPU
    lora: str = ""
    cache_salt: str = ""
    """The cache salt, known only where the sequence starts (`parent` is None)."""
    extras: tuple[bytes | None, ...] | None = None
    """Canonical extra of each block (see `indexer.keys.key.pack_extra`); None where no block has one."""
    group: int = 0
    kind: str = ""
    """The group's kind of attention as the engine names it; empty where it does not name it."""
    window: int = 0
    """Tokens of the group's sliding window; 0 where it has none, or the engine does not say."""
    lookahead: int = 0
    """How many tokens behind a block it depends on, too; the block's extra names the first of them
    (`indexer.keys.key.next_token`)."""
    is_rest: bool = False
    """Whether this is the rest of a store that had no parent; `parent` is then a block of that store."""
    once: bool = False
    """Whether the engine keeps no block twice in a tier; a second store of a block is then that of a
    block in another namespace."""

    @classmethod
    def of(
        cls,
        hashes: Iterable[int | bytes],
        tokens: Iterable[int],
        *,
        block_size: int,
        parent: int | bytes | None = None,
        tier: str = Tier.GPU,
        lora: str = "",
        cache_salt: str = "",
        extras: Sequence[bytes | None] | None = None,
    ) -> Self:
        """Return the store of blocks by names of any form, with token ids as integers.

        `block_size` is in tokens; the other arguments are the fields of the same names. Raises
        ValueError for an unknown tier, or a token id that is not an unsigned 32-bit integer.

        >>> Stored.of([7, 8], range(8), block_size=4, parent=6).parent
        6
        """
        return cls(
            names_of(hashes),
            None if parent is None else name_of(parent),
            pack_tokens(tokens),
            block_size,
            _tier("tier", tier),
            lora,
            cache_salt,
            None if extras is None else tuple(extras),
        )


@dataclass(frozen=True, slots=True)
class Removed:
    """One copy of each of these blocks is gone from a tier."""

    hashes: tuple[EngineHash, ...]
    tier: Tier | None = Tier.GPU
    """The tier; None where the engine does not name it and so keeps each block in one tier only."""
    group: int = 0

    @classmethod
    def of(cls, hashes: Iterable[int | bytes], *, tier: str = Tier.GPU) -> Self:
        """Return the removal of blocks by names of any form. Raises ValueError for an unknown tier.

        >>> Removed.of([-1], tier="cpu").hashes
        (18446744073709551615,)
        """
        return cls(names_of(hashes), _tier("tier", tier))


@dataclass(frozen=True, slots=True)
class Moved:
    """A block went from one tier to another."""

    hash: EngineHash
    source: Tier
    target: Tier
    group: int = 0

    @classmethod
    def of(cls, name: int | bytes, *, source: str, target: str) -> Self:
        """Return a block's move, by its name in any form. Raises ValueError for an unknown tier.

        >>> Moved.of(7, source="gpu", target="cpu").target
        <Tier.CPU: 'cpu'>
        """
        return cls(name_of(name), _tier("source", source), _tier("target", target))


@dataclass(frozen=True, slots=True)
class Cleared:
    """The rank's whole cache is empty."""


Event = Stored | Removed | Moved | Cleared


@dataclass(frozen=True, slots=True)
class UnreadableEvent:
    """An event that cannot be read, in a batch that can be read: its changes are not known."""

    kind: str
    """The event's type as the engine names it; empty where not even that can be read."""
    reason: str

    @property
    def is_store(self) -> bool:
        """Whether the event is a store: then the view lacks blocks, but no block in it is gone."""
        return self.kind == "BlockStored"


@dataclass(frozen=True, slots=True)
class Batch:
    """The events of one message of an engine, in the order in which the cache changed."""

    timestamp: float
    """The engine's wall clock, seconds."""
    events: tuple[Event, ...]
    rank: int | None = None
    """The data-parallel rank; None where the engine does not say."""
    unread: tuple[UnreadableEvent, ...] = ()
    """The events after the last clear that cannot be read; those before a clear do not matter."""
    capacity: int = 0
    """Blocks of the engine's cache; 0 where the batch does not say."""
