"""`warmpath index dump`: prints the shared index as lines of JSON, page by page.

The first lines are the pods with the places (rank, tier, group) of their slots. Then comes a line
for each segment, block of a spilled segment, checkpoint, and field that cannot be read.
Keys and segments are hexadecimal. Entries that change meanwhile may be missing or appear twice.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

import numpy as np

from warmpath.cli.index.access import Access, AccessError, PodSeen, living_of, pages
from warmpath.indexer.keys.key import WORD_BYTES
from warmpath.indexer.keys.segment_value import BadSegmentError, decode, spilled_blocks
from warmpath.indexer.shared.layout.names import checkpoint
from warmpath.indexer.shared.layout.record import SLOTS_OF_A_CLAIM, Living
from warmpath.indexer.shared.redis.command import Command
from warmpath.process.command_line import USAGE


async def dump(access: Access, pod: str) -> AsyncIterator[str]:
    """Yield the lines, only those of `pod` unless it is empty. Raises AccessError for an unknown pod."""
    pods = await access.pods()
    if pod and pod not in pods and not access.silent and not await _has_written(access, pod):
        raise AccessError(
            f"nothing under the prefix {access.names.prefix!r} is of a pod {pod!r} (--pod): "
            "warmpath index stats lists the pods",
            status=USAGE,
        )
    for seen in pods.values():
        if pod in {"", seen.name}:
            yield _line(kind="pod", **_pod(seen))
    living, is_all = living_of(pods), not access.unread(pods)
    async for bucket, page in pages(access):
        for name, value in page.values.items():
            line = _value(living, name, value, pod, is_all=is_all)
            if line is not None:
                yield _line(bucket=bucket, **line)
        for owner, value in page.checkpoints.items():
            if pod in {"", owner}:
                text = value.decode(errors="replace")
                yield _line(kind="checkpoint", bucket=bucket, pod=owner, checkpoint=text)
        if not pod:
            for name in page.strange:
                yield _line(kind="unreadable", bucket=bucket, field=name[:64].hex())


async def _has_written(access: Access, pod: str) -> bool:
    """Return whether a pod has a record or a checkpoint, even if the list of pods lacks it."""
    name = checkpoint(pod)
    if (await access.pod(pod)).record is not None:
        return True
    asked = [Command(("HGET", access.names.bucket(n), name)) for n in access.buckets]
    return any(reply is not None for reply in await access.ask(asked))


def _line(**fields: Any) -> str:
    return json.dumps(fields, separators=(",", ":"))


def _pod(seen: PodSeen) -> dict[str, Any]:
    record = seen.record
    if record is None:
        return {"pod": seen.name, "record": None, "reason": seen.problem}
    claim = record.claim
    return {
        "pod": seen.name,
        "token": record.token,
        "applied": record.applied,
        "audits": record.audits,
        "sound": record.sound,
        "reason": record.reason,
        "building": record.building or None,
        "base": claim.base if claim else None,
        "owner": claim.owner if claim else None,
        "model": claim.model if claim else None,
        "keyspace": claim.keyspace if claim else None,
        "watch": claim.watch if claim else None,
        "places": [
            None if spot is None else {"rank": spot.rank, "tier": spot.tier, "group": spot.group}
            for spot in (claim.places if claim else ())
        ],
        "trust": {str(rank): state.trust for rank, state in sorted(record.states.items())},
    }


def _value(
    living: Living, name: bytes, value: bytes, pod: str, *, is_all: bool
) -> dict[str, Any] | None:
    """Return a field's content; None if it has none of the wanted pod's entries.

    `is_all`: every record was read.
    """
    segment = f"{int.from_bytes(name[:WORD_BYTES], 'little'):016x}"
    try:
        spilled = spilled_blocks(value) if len(name) == WORD_BYTES else None
        if spilled is not None:
            return None if pod else {"kind": "spilled", "segment": segment, "blocks": spilled}
        packed = decode(value)
    except BadSegmentError as error:
        if pod:
            return None
        return {"kind": "unreadable", "field": name.hex(), "problem": str(error)}
    holders = [_holder(living, slot, is_all=is_all) for slot in packed.slots]
    shown = [n for n, holder in enumerate(holders) if not pod or holder.get("pod") == pod]
    if not shown:
        return None
    renumbered = {column: n for n, column in enumerate(shown)}
    rows = np.unpackbits(packed.bits, axis=1, count=len(packed.slots), bitorder="little")
    blocks = []
    for key, row in zip(packed.keys.tolist(), rows, strict=True):
        held = [
            renumbered[column] for column in np.flatnonzero(row).tolist() if column in renumbered
        ]
        if held:
            blocks.append([f"{key:016x}", held])
    return {
        "kind": "segment" if len(name) == WORD_BYTES else "block",
        "segment": segment,
        "holders": [holders[column] for column in shown],
        "blocks": blocks,
    }


def _holder(living: Living, slot: int, *, is_all: bool) -> dict[str, Any]:
    place = living.place(slot)
    number = slot % SLOTS_OF_A_CLAIM
    if place is None:
        return {"slot": slot, "dead": True if is_all else None}
    if place.spot is None:
        return {"pod": place.pod, "number": number}
    spot = place.spot
    return {"pod": place.pod, "rank": spot.rank, "tier": spot.tier, "group": spot.group}
