"""Which slots stand for something, by the records of all pods, and which can never again."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from indexer.shared.layout.names import Names
from indexer.shared.layout.record import SLOTS_OF_A_CLAIM, BadRecordError, Claim, SpotOf
from indexer.shared.redis.command import Command


class Owner(msgspec.Struct, frozen=True):
    """What a pod's record says of slots."""

    token: int
    claim: Claim | None
    """None before the first claim's content is there."""
    building: int | None
    """The base of a claim whose content is being written; None: none is."""


def ask_owner(names: Names, pod: str) -> Command:
    """Return the command that reads what a pod's record says of slots."""
    return Command(("HMGET", names.record(pod), "token", "claim", "building"))


def read_owner(pod: str, reply: Sequence[bytes | None]) -> Owner | None:
    """Return what was read; None where there is no record. Raises BadRecordError."""
    token, claim, building = reply
    if token is None and claim is None and building is None:
        return None
    try:
        return Owner(
            token=int(token or b""),
            claim=msgspec.json.decode(claim, type=Claim) if claim else None,
            building=int(building) if building else None,
        )
    except (ValueError, msgspec.MsgspecError) as error:
        raise BadRecordError(f"the record of pod {pod!r} cannot be read: {error}") from error


@dataclass(frozen=True, slots=True)
class Place:
    """What a living slot stands for."""

    pod: str
    spot: SpotOf | None
    """None: it is not known yet, because its claim is being built or its batch is not logged."""


class Living:
    """All pods' records, read one after the other.

    Dead is dead for good: a base is random and serves one claim; a claim that no record names is never
    named again; and a place that was dropped is never another. So it does no harm to act late on what
    was dead once. It would to call a slot dead whose owner was not asked: the records have to be read
    after the slot was seen, and those of all pods that may have written it.
    """

    def __init__(self) -> None:
        self.owners: dict[str, Owner | None] = {}
        self._bases: dict[int, tuple[str, Sequence[SpotOf | None]]] = {}

    def add(self, pod: str, owner: Owner | None) -> None:
        """Take note of a pod's record."""
        self.owners[pod] = owner
        if owner is None:
            return
        if owner.building is not None:
            self._bases[owner.building] = pod, ()
        if owner.claim is not None:
            self._bases[owner.claim.base] = pod, owner.claim.places

    def place(self, slot: int) -> Place | None:
        """Return what a slot stands for; None where it is dead."""
        base, number = divmod(slot, SLOTS_OF_A_CLAIM)
        found = self._bases.get(base)
        if found is None:
            return None
        pod, places = found
        if number >= len(places):
            # Content is written before the place is made known.
            return Place(pod, None)
        spot = places[number]
        return None if spot is None else Place(pod, spot)

    def dead(self, slots: Iterable[int]) -> set[int]:
        """Return those that are dead."""
        return {slot for slot in slots if self.place(slot) is None}

    def token(self, pod: str) -> int | None:
        """Return the number of a pod's last claim; None where it has no record."""
        owner = self.owners.get(pod)
        return None if owner is None else owner.token
