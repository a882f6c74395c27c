"""Compares the shared index with a publisher's snapshots from before and after it was read.

A key in both snapshots must be in the index, a key in neither must not. Keys in only one of them, which
changed in between, are not judged.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import grpc
import grpc.aio
import numpy as np
from numpy.typing import NDArray

from warmpath.indexer.engines.event import Tier
from warmpath.indexer.shared.layout.record import Claim, SpotOf
from warmpath.indexer.watch.client import OPTIONS
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2 as pb
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2_grpc

Keys = NDArray[np.uint64]
NOTHING: Keys = np.empty(0, np.uint64)
MAX_BYTES = 1 << 30
"""The most bytes of one snapshot's keys: 2**27 keys of 8 bytes."""


class NotComparableError(Exception):
    """A pod cannot be compared; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Truth:
    """The keys that a publisher's ranks held at one position of its journal."""

    epoch: str
    """The id of this run of the publisher's process; another id means that it was restarted."""
    sequence: int
    """The position in its journal."""
    held: Mapping[SpotOf, Keys]
    """The sorted keys of each place (rank, tier, group)."""


async def truth_of(
    pod: str, claim: Claim, credentials: grpc.ChannelCredentials | None, timeout: float
) -> Truth:
    """Return a snapshot of the publisher that a claim names. Raises NotComparableError."""
    if not claim.watch:
        raise NotComparableError(
            "its claim names no publisher's address (the writer is a router in direct mode, or a "
            "publisher that listens on every address without --advertise)"
        )
    if credentials is None:
        channel = grpc.aio.insecure_channel(claim.watch, options=OPTIONS)
    else:
        channel = grpc.aio.secure_channel(claim.watch, credentials, options=OPTIONS)
    async with channel:
        stub = cache_watch_pb2_grpc.CacheWatchStub(channel)
        call = stub.Watch(pb.WatchRequest(keyspace=claim.keyspace), timeout=timeout)
        try:
            return await _snapshot(pod, call)
        except grpc.aio.AioRpcError as error:
            problem = f"{error.code().name}: {error.details()}"
            raise NotComparableError(f"its publisher at {claim.watch}: {problem}") from error
        except ValueError as error:
            raise NotComparableError(f"its publisher at {claim.watch}: {error}") from error
        finally:
            call.cancel()


async def _snapshot(pod: str, call: object) -> Truth:
    epoch, size = "", 0
    parts: dict[SpotOf, list[bytes]] = {}
    # The stubs type an asynchronous call like a blocking one.
    async for response in cast("Any", call):
        kind = response.WhichOneof("kind")
        if kind == "hello":
            if response.hello.pod != pod:
                raise NotComparableError(f"the publisher there is pod {response.hello.pod!r}'s")
            epoch = response.hello.epoch
        elif kind == "part":
            part = response.part
            size += len(part.keys)
            if size > MAX_BYTES:
                raise NotComparableError(f"its snapshot is larger than {MAX_BYTES >> 20} MiB")
            spot = SpotOf(part.rank, Tier(part.tier), part.group)
            parts.setdefault(spot, []).append(part.keys)
        elif kind == "end":
            held = {spot: _keys(some) for spot, some in parts.items()}
            return Truth(epoch, response.end.sequence, held)
    raise NotComparableError("the publisher ended the snapshot early")


def _keys(parts: list[bytes]) -> Keys:
    """Unpack keys and sort them. Raises ValueError if the length is not a multiple of 8 bytes."""
    return np.unique(np.frombuffer(b"".join(parts), "<u8").astype(np.uint64, copy=False))


@dataclass(slots=True)
class Difference:
    """The wrong keys at one place (rank, tier, group) of a pod."""

    missing: Keys
    """Keys that both snapshots have and the index lacks."""
    extra: Keys
    """Keys that the index has and both snapshots lack."""
    twice: Keys
    """Keys that the index has in two segments."""

    def and_also(self, later: "Difference") -> "Difference":
        """Return the keys that are wrong in this difference and in `later`."""
        return Difference(
            np.intersect1d(self.missing, later.missing),
            np.intersect1d(self.extra, later.extra),
            np.intersect1d(self.twice, later.twice),
        )

    def __bool__(self) -> bool:
        return bool(len(self.missing) or len(self.extra) or len(self.twice))


@dataclass(slots=True)
class Compared:
    """The result for one pod."""

    problem: str = ""
    """Why it could not be compared; empty if it was."""
    sequence: int = 0
    """The first snapshot's position in the publisher's journal."""
    keys: int = 0
    """(place, key) pairs in both snapshots, which were looked for in the index."""
    changed: int = 0
    """(place, key) pairs in only one snapshot."""
    differences: dict[SpotOf, Difference] = field(default_factory=dict)


def in_both(
    before: Mapping[SpotOf, Difference], later: Mapping[SpotOf, Difference]
) -> dict[SpotOf, Difference]:
    """Return the differences found in both readings of the index."""
    both = {spot: before[spot].and_also(later[spot]) for spot in before.keys() & later.keys()}
    return {spot: difference for spot, difference in both.items() if difference}


def compare(
    before: tuple[Claim, Truth], after: tuple[Claim, Truth], held: Mapping[int, Keys]
) -> Compared:
    """Compare the sorted keys of each slot of a claim in the index with a pod's two snapshots.

    Both snapshots are of one claim (`Claim.base`), whose places may have changed in between.
    """
    claim, first = before
    now, second = after
    if first.epoch != second.epoch:
        return Compared(problem="its publisher was restarted meanwhile")
    result = Compared(sequence=first.sequence)
    slots = {spot: claim.slot(n) for n, spot in enumerate(claim.places) if spot is not None}
    # A rank that was emptied meanwhile has other slots now.
    stayed = {
        spot
        for n, spot in enumerate(claim.places)
        if spot is not None and now.places[n : n + 1] == [spot]
    }
    for spot in sorted(first.held.keys() | slots.keys(), key=str):
        had, has = first.held.get(spot, NOTHING), second.held.get(spot, NOTHING)
        must, may = np.intersect1d(had, has), np.union1d(had, has)
        result.changed += len(may) - len(must)
        if spot in slots and spot not in stayed:
            continue
        found, counts = (
            np.unique(held[slots[spot]], return_counts=True)
            if spot in slots
            else (NOTHING, NOTHING)
        )
        result.keys += len(must)
        difference = Difference(
            np.setdiff1d(must, found, assume_unique=True),
            np.setdiff1d(found, may, assume_unique=True),
            found[counts > 1],
        )
        if difference:
            result.differences[spot] = difference
    return result
