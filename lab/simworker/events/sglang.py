"""SGLang's dialect, 0.5.6 to 0.5.23: its events' forms over vLLM's simulated cache.

Source: `sglang/srt/disaggregation/kv_events.py` of those versions. A
page is a block, its name the first 8 bytes of a digest as a *signed* integer. Events are arrays up to
0.5.19 and maps from 0.5.20; up to 0.5.22 every page and every removal is an event of its own. A life
begins with a clear, because creating SGLang's tree is a reset.

Only the wire is SGLang's. The cache stores, keeps and evicts as vLLM's does: pages are announced when
they are scheduled, not when a request ends or a chunk is done; there is no radix tree; the digests are
vLLM's. Of a page that the cache has twice only the first store and the last removal are announced
(`lab.simworker.events.from_v1`). Groups after the first are left out, as SGLang has none, and so are
an offload tier's stores without tokens. Versions before 0.5.6 named pages without their parents, which
these digests cannot imitate; the form of 0.5.18 and 0.5.19 is not known.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from warmpath.lab.simworker.events.wire_event import (
    CPU,
    Cleared,
    Field,
    Layout,
    Removed,
    Stored,
    Version,
    WireEvent,
    version_text,
)

OLDEST: Version = (0, 5, 6)
NEWEST: Version = (0, 5, 23)
NOT_ESTABLISHED: tuple[Version, ...] = ((0, 5, 18), (0, 5, 19))
MAPS_SINCE: Version = (0, 5, 20)
REPLAY_TOPIC_SINCE: Version = (0, 5, 22)
RUNS_SINCE: Version = (0, 5, 23)

STORED = (
    Field("block_hashes", always=True),
    Field("parent_block_hash", always=True),
    Field("token_ids", always=True),
    Field("block_size", always=True),
    Field("lora_id", always=True),
    Field("medium", (0, 5, 9)),
    Field("cache_salt", (0, 5, 20)),
    Field("session_id", (0, 5, 20)),
    Field("lora_name", (0, 5, 22)),
)
REMOVED = (Field("block_hashes", always=True), Field("medium", (0, 5, 9)))

MEDIUMS = {CPU: "CPU_PINNED"}
"""vLLM's name of a medium -> SGLang's, where they differ."""

_encode = msgspec.msgpack.Encoder().encode


class SglangDialect:
    """The encoder of one SGLang version's batches."""

    engine = "sglang"
    keeps_once = True
    opening: Sequence[WireEvent] = (Cleared(),)

    def __init__(self, version: Version | None = None, byte_hashes: bool = False) -> None:
        """Take a version, the newest by default. Raises ValueError for one out of range."""
        version = version or NEWEST
        if not OLDEST <= version <= NEWEST or version in NOT_ESTABLISHED:
            raise ValueError(
                f"SGLang's events are known from {version_text(OLDEST)} to {version_text(NEWEST)}, "
                "except 0.5.18 and 0.5.19"
            )
        if byte_hashes:
            raise ValueError("SGLang has no hashes as bytes")
        self.version = version_text(version)
        self.replays_topic = version >= REPLAY_TOPIC_SINCE
        self._runs = version >= RUNS_SINCE
        self._layout = Layout(version, maps=version >= MAPS_SINCE)
        self._stored = self._layout.fields(STORED)
        self._removed = self._layout.fields(REMOVED)

    def batch(self, timestamp: float, events: Sequence[WireEvent], rank: int | None) -> bytes:
        """Return one batch's payload; `rank` is the attention data-parallel rank."""
        own = [event for event in events if _expressible(event)]
        forms = [
            form for event in (_runs(own) if self._runs else own) for form in self._events(event)
        ]
        return _encode([timestamp, forms, rank])

    def _events(self, event: WireEvent) -> Iterator[Any]:
        if isinstance(event, Stored):
            yield from self._pages(event)
        elif isinstance(event, Removed):
            names = [_name(digest) for digest in event.block_hashes]
            for run in [names] if self._runs else [[name] for name in names]:
                values = {"block_hashes": run, "medium": _medium(event.medium)}
                yield self._layout.event("BlockRemoved", self._removed, values)
        else:
            yield self._layout.event("AllBlocksCleared", (), {})

    def _pages(self, event: Stored) -> Iterator[Any]:
        names = [_name(digest) for digest in event.block_hashes]
        parent = event.parent_block_hash
        parents = [None if parent is None else _name(parent), *names]
        pages = len(names) if self._runs else 1
        size = event.block_size
        for first in range(0, len(names), max(pages, 1)):
            values = {
                "block_hashes": names[first : first + pages],
                "parent_block_hash": parents[first],
                "token_ids": list(event.token_ids[first * size : (first + pages) * size]),
                "block_size": size,
                "lora_id": None,
                "medium": _medium(event.medium),
                "cache_salt": _salt(event),
                "session_id": event.session_id,
                "lora_name": event.lora_name,
            }
            yield self._layout.event("BlockStored", self._stored, values)


def _expressible(event: WireEvent) -> bool:
    if isinstance(event, Stored):
        pages = len(event.block_hashes)
        whole = pages > 0 and event.block_size > 0
        return not event.group_idx and whole and len(event.token_ids) == pages * event.block_size
    return not (isinstance(event, Removed) and event.group_idx)


def _runs(events: Sequence[WireEvent]) -> list[WireEvent]:
    """Join neighbours: removals from one medium, and stores that each go on where the last ended."""
    runs: list[WireEvent] = []
    for event in events:
        last = runs[-1] if runs else None
        if isinstance(event, Removed) and isinstance(last, Removed) and event.medium == last.medium:
            hashes = (*last.block_hashes, *event.block_hashes)
            runs[-1] = replace(last, block_hashes=hashes)
        elif isinstance(event, Stored) and isinstance(last, Stored) and _goes_on(last, event):
            runs[-1] = replace(
                last,
                block_hashes=(*last.block_hashes, *event.block_hashes),
                token_ids=(*last.token_ids, *event.token_ids),
            )
        else:
            runs.append(event)
    return runs


def _goes_on(last: Stored, event: Stored) -> bool:
    return event.parent_block_hash == last.block_hashes[-1] and all(
        getattr(last, name) == getattr(event, name)
        for name in ("block_size", "lora_name", "medium", "session_id")
    )


def _name(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "big", signed=True)


def _medium(medium: str | None) -> str | None:
    return None if medium is None else MEDIUMS.get(medium, medium)


def _salt(event: Stored) -> str | None:
    """Return the salt in the event of a sequence's first pages; None in later events, or without one."""
    if event.parent_block_hash is not None or not event.extra_keys or not event.extra_keys[0]:
        return None
    last = event.extra_keys[0][-1]
    return last if isinstance(last, str) and last != event.lora_name else None
