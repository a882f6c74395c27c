"""A pod's record in Redis: who writes for the pod, under which slots, and how far the writer is.

The record is a hash with a lease, which the pod's publisher renews. A pod without a record
counts as holding nothing.

    token     the claim's number: a later claim has a higher one; writes of earlier claims are refused
    owner     who made the claim: a random name for one life of one writer
    building  the base of the claim whose content is being written; missing when it is complete
    claim     the `Claim` of the last complete content, as JSON
    applied   the last sequence of the publisher's journal that is in the index and in the log
    audits    how often the writer has found every bucket as it left it, within this claim
    sound     N:MS, the claim's N-th confirmation: the index has what the publisher says, and was at most
              MS milliseconds behind the engine when Redis took the confirmation before this one; only N
              where that is not known. Missing while the index may differ
    reason    why the index may differ
    state:N   what the publisher says of rank N: a RankState (`proto/warmpath/watch/v1`)
    blocks:N  distinct blocks that rank N holds, by tier, as JSON
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from warmpath.indexer.engines.cache_groups import MOST_NUMBER
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.shared.layout.names import MOST_DIGITS
from warmpath.indexer.trust import MOST_REASON
from warmpath.indexer.watch.watched_source import check_state
from warmpath.process.bytes import UNREADABLE, read_message
from warmpath.process.logs import shortened
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2 as pb

SLOTS_OF_A_CLAIM = 1 << 16
"""A slot is the claim's base x this + the number of its place."""

LEAST_LEASE, MOST_LEASE = 1, 3600
"""The shortest and the longest lease, seconds: how long a record outlives its writer."""
MOST_BASE = (1 << 47) - 1
MOST_RANKS = 1024
MOST_COUNT = 10**MOST_DIGITS - 1
"""The highest count of batches, claims or blocks."""

Rank = Annotated[int, Meta(ge=0, lt=MOST_RANKS)]
Count = Annotated[int, Meta(ge=0, le=MOST_COUNT)]


class SpotOf(msgspec.Struct, frozen=True, array_like=True):
    """The place of a slot: a rank's tier and cache group."""

    rank: Rank
    tier: Tier
    group: Annotated[int, Meta(ge=0, le=MOST_NUMBER)]


class Claim(msgspec.Struct, frozen=True):
    """One writer's claim on a pod."""

    owner: str
    """A random name for one life of one writer."""
    base: Annotated[int, Meta(ge=0, le=MOST_BASE)]
    """Random, 47 bits: the slots of this claim are base * SLOTS_OF_A_CLAIM + n."""
    places: Annotated[list[SpotOf | None], Meta(max_length=SLOTS_OF_A_CLAIM)]
    """The place of each of its slots, by number; None for a dropped place."""
    keyspace: str
    """Fingerprint of model and hash seed (`indexer.keys.key.fingerprint`)."""
    model: str
    ranks: Annotated[int, Meta(ge=1, le=MOST_RANKS)]
    watch: str = ""
    """host:port at which the publisher serves CacheWatch; empty: nowhere."""

    def slot(self, number: int) -> int:
        return self.base * SLOTS_OF_A_CLAIM + number


class Record(msgspec.Struct, frozen=True):
    """A pod's record, as it was read."""

    token: int
    claim: Claim | None
    """The claim of the last complete content; None until the first claim's content is complete."""
    applied: int
    audits: int
    sound: bool
    confirmation: int
    """The number of the claim's last confirmation; 0 while it is not sound."""
    behind: float | None
    """By how many seconds the index was behind the engine, at most, when Redis took the confirmation
    before the last one; None where it is not known."""
    reason: str
    states: dict[int, pb.RankState]
    blocks: dict[int, dict[Tier, int]]
    owner: str = ""
    building: int = 0
    """The base of the claim whose content is being written; 0: none."""


class BadRecordError(ValueError):
    """A record that this version cannot have written."""


def fields_of(reply: Sequence[bytes]) -> dict[bytes, bytes]:
    """Return a hash's fields from the reply to HGETALL: names and values in turn."""
    return dict(zip(reply[::2], reply[1::2], strict=True))


def read_record(fields: Mapping[bytes, bytes]) -> Record | None:
    """Return a record from its hash's fields; None where there are none. Raises BadRecordError."""
    if not fields:
        return None
    try:
        return _read(fields)
    except (ValueError, KeyError, *UNREADABLE) as error:
        raise BadRecordError(f"a pod's record cannot be read: {error}") from error


def _read(fields: Mapping[bytes, bytes]) -> Record:
    states: dict[int, pb.RankState] = {}
    blocks: dict[int, dict[Tier, int]] = {}
    for name, value in fields.items():
        kind, _, number = name.partition(b":")
        if kind == b"state":
            state = states[_count(number, MOST_RANKS)] = read_message(pb.RankState, value)
            check_state(state)
        elif kind == b"blocks":
            rank = _count(number, MOST_RANKS)
            blocks[rank] = msgspec.json.decode(value, type=dict[Tier, Count])
    claim: Any = fields.get(b"claim")
    confirmation, _, behind = fields.get(b"sound", b"0").partition(b":")
    return Record(
        token=_count(fields[b"token"]),
        claim=msgspec.json.decode(claim, type=Claim) if claim else None,
        applied=_count(fields.get(b"applied", b"0")),
        audits=_count(fields.get(b"audits", b"0")),
        sound=b"sound" in fields,
        confirmation=_count(confirmation),
        behind=_count(behind) / 1000 if behind else None,
        reason=shortened(fields.get(b"reason", b"").decode(), MOST_REASON),
        states=states,
        blocks=blocks,
        owner=fields.get(b"owner", b"").decode(),
        building=_count(fields.get(b"building", b"0"), MOST_BASE),
    )


def _count(digits: bytes, most: int = MOST_COUNT) -> int:
    """Return a number in digits. Raises ValueError where it is not one from 0 to `most`."""
    if not digits.isdigit() or len(digits) > len(str(most)) or int(digits) > most:
        raise ValueError(f"{digits[:40]!r} is not a number from 0 to {most}")
    return int(digits)


class PodSpot(NamedTuple):
    """The pod and the spot that a living slot belongs to."""

    pod: str
    spot: SpotOf | None
    """The spot; None while it is not known: the claim's content is being written, or the record does
    not name the spot yet."""


class Living:
    """The slots of all pods, from their records, which are read one after the other.

    A dead slot stays dead: a base is random and belongs to one claim, a claim that no record names
    is never named again, and the number of a dropped place is never given to another place. So a
    sweeper may act late on a slot that was dead once. But it must not call a slot dead whose owner
    it did not read: it has to read the records of all pods that may have written the slot, after it
    saw the slot.
    """

    def __init__(self) -> None:
        self.owners: dict[str, Record | None] = {}
        self._bases: dict[int, tuple[str, Sequence[SpotOf | None]]] = {}

    def add(self, pod: str, owner: Record | None) -> None:
        """Add a pod's slots; `owner` is None where the pod has no record."""
        self.owners[pod] = owner
        if owner is None:
            return
        if owner.building:
            self._bases[owner.building] = pod, ()
        if owner.claim is not None:
            self._bases[owner.claim.base] = pod, owner.claim.places

    def place(self, slot: int) -> PodSpot | None:
        """Return the place that a slot belongs to; None where the slot is dead."""
        base, number = divmod(slot, SLOTS_OF_A_CLAIM)
        found = self._bases.get(base)
        if found is None:
            return None
        pod, places = found
        if number >= len(places):
            # A writer writes content first, and names its place in the record afterwards.
            return PodSpot(pod, None)
        spot = places[number]
        return None if spot is None else PodSpot(pod, spot)

    def dead(self, slots: Iterable[int]) -> set[int]:
        return {slot for slot in slots if self.place(slot) is None}

    def token(self, pod: str) -> int | None:
        """Return the number of a pod's last claim; None where it has no record."""
        owner = self.owners.get(pod)
        return None if owner is None else owner.token
