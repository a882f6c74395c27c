"""What is said of a pod in Redis: who writes for it, under which slots, and how far it is.

The record is a hash under a lease: its publisher renews it, and where it is gone the pod is too.

    token     the claim's number: a later claim has a higher one, and an earlier one's writes are refused
    owner     who claimed it: random, one life of one writer
    building  the base of the claim whose content is being written; missing when it is complete
    claim     `Claim`, as JSON: of the last content that was complete
    applied   the last sequence of the publisher's journal that is in the index and in the log
    audits    how often the writer has found every bucket as it left it, within this claim
    sound     there where the index is what the publisher says; missing while it may not be
    reason    why not
    state:N   what the publisher says of rank N: a RankState (`proto/warmpath/watch/v1`)
    blocks:N  distinct blocks that rank N holds, by tier, as JSON
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from indexer.engines.event import Tier
from indexer.pb.warmpath.watch.v1 import cache_watch_pb2 as pb
from indexer.shared.message import read_message
from indexer.trust import Level

SLOTS_OF_A_CLAIM = 1 << 16
"""A slot is the claim's base x this + the number of its place."""


class SpotOf(msgspec.Struct, frozen=True, array_like=True):
    """What a slot stands for: a rank's tier and cache group."""

    rank: int
    tier: Tier
    group: int


class Claim(msgspec.Struct, frozen=True):
    """One writer's claim on a pod."""

    owner: str
    """Random: one life of one writer."""
    base: int
    """Random, 47 bits: the slots of this claim are base * SLOTS_OF_A_CLAIM + n."""
    places: list[SpotOf | None]
    """What each of its slots stands for; None for one that was dropped."""
    keyspace: str
    """Fingerprint of model and hash seed (`indexer.key.fingerprint`)."""
    model: str
    ranks: int
    watch: str = ""
    """host:port at which the publisher serves CacheWatch; empty: nowhere."""

    def slot(self, number: int) -> int:
        """Return the slot of a place."""
        return self.base * SLOTS_OF_A_CLAIM + number


class Record(msgspec.Struct, frozen=True):
    """A pod's record, as it was read."""

    token: int
    claim: Claim | None
    """None where the first claim's content is not there yet."""
    applied: int
    audits: int
    sound: bool
    reason: str
    states: dict[int, pb.RankState]
    blocks: dict[int, dict[Tier, int]]
    owner: str = ""
    building: int = 0
    """0: nothing is being built."""


class BadRecordError(ValueError):
    """A record is not what this version writes."""


def fields_of(reply: Sequence[bytes]) -> dict[bytes, bytes]:
    """Return a hash's fields from the reply to HGETALL: names and values in turn."""
    return dict(zip(reply[::2], reply[1::2], strict=True))


def read_record(fields: Mapping[bytes, bytes]) -> Record | None:
    """Return a record from its hash's fields; None where there are none. Raises BadRecordError."""
    if not fields:
        return None
    try:
        return _read(fields)
    except (ValueError, KeyError, msgspec.MsgspecError) as error:
        raise BadRecordError(f"a pod's record cannot be read: {error}") from error


def _read(fields: Mapping[bytes, bytes]) -> Record:
    states: dict[int, pb.RankState] = {}
    blocks: dict[int, dict[Tier, int]] = {}
    for name, value in fields.items():
        kind, _, number = name.partition(b":")
        if kind == b"state":
            state = states[int(number)] = read_message(pb.RankState, value)
            Level(state.trust)
        elif kind == b"blocks":
            blocks[int(number)] = msgspec.json.decode(value, type=dict[Tier, int])
    claim: Any = fields.get(b"claim")
    return Record(
        token=int(fields[b"token"]),
        claim=msgspec.json.decode(claim, type=Claim) if claim else None,
        applied=int(fields.get(b"applied", b"0")),
        audits=int(fields.get(b"audits", b"0")),
        sound=b"sound" in fields,
        reason=fields.get(b"reason", b"").decode(),
        states=states,
        blocks=blocks,
        owner=fields.get(b"owner", b"").decode(),
        building=int(fields.get(b"building", b"0")),
    )
