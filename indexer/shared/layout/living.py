"""Distinguishes living slots from dead ones, by the records of all pods.

A living slot belongs to a place of a pod: a rank, a tier and a cache group. A dead slot belongs
to none, and never will again.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.layout.record import SLOTS_OF_A_CLAIM, BadRecordError, Claim, SpotOf
from warmpath.indexer.shared.redis.command import Command
from warmpath.process.bytes import UNREADABLE


class Owner(msgspec.Struct, frozen=True):
    """The part of a pod's record from which the pod's slots follow."""

    token: int
    claim: Claim | None
    """None until the first claim's content is complete."""
    building: int | None
    """The base of a claim whose content is being written; None where none is."""


def ask_owner(names: KeyNames, pod: str) -> Command:
    """Return the command that reads a pod's `Owner`."""
    return Command(("HMGET", names.record(pod), "token", "claim", "building"))


def read_owner(pod: str, reply: Sequence[bytes | None]) -> Owner | None:
    """Return the `Owner` in a reply; None where the pod has no record. Raises BadRecordError."""
    token, claim, building = reply
    if token is None and claim is None and building is None:
        return None
    try:
        return Owner(
            token=int(token or b""),
            claim=msgspec.json.decode(claim, type=Claim) if claim else None,
            building=int(building) if building else None,
        )
    except (ValueError, *UNREADABLE) as error:
        raise BadRecordError(f"the record of pod {pod!r} cannot be read: {error}") from error


class PodSpot(NamedTuple):
    """The pod and the spot that a living slot belongs to."""

    pod: str
    spot: SpotOf | None
    """None while the spot is not known: the claim's content is being written, or the record does
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
        self.owners: dict[str, Owner | None] = {}
        self._bases: dict[int, tuple[str, Sequence[SpotOf | None]]] = {}

    def add(self, pod: str, owner: Owner | None) -> None:
        """Add a pod's slots; `owner` is None where the pod has no record."""
        self.owners[pod] = owner
        if owner is None:
            return
        if owner.building is not None:
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
