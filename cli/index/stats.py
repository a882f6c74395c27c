"""`warmpath index stats`: counts the shared index's content by pod, tier and node."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from warmpath.cli.console import new_table
from warmpath.cli.index.access import Access, PodSeen, damage, dead_words, living_of, pages
from warmpath.indexer.keys.key import WORD_BYTES
from warmpath.indexer.keys.segment_value import BadSegmentError, decode, spilled_blocks
from warmpath.indexer.shared.layout.names import SCHEMA
from warmpath.indexer.shared.layout.record import Living
from warmpath.indexer.shared.layout.schema import facts_of
from warmpath.indexer.shared.records.registry import UNWRITTEN
from warmpath.indexer.shared.redis.command import Call, Command, script
from warmpath.indexer.shared.sweep.sweeper import AT_REST
from warmpath.indexer.trust import Level

NO_RECORD = "no record: its lease is over, or no claim of it was completed"


@dataclass(slots=True)
class Survey:
    """Counts of the content. Changes that writers make meanwhile are counted in part."""

    packed: int = 0
    """Segments with one value."""
    spilled: int = 0
    """Segments whose blocks have fields of their own."""
    blocks: int = 0
    entries: int = 0
    """(block, slot) pairs."""
    size: int = 0
    """Bytes of the names and values of all fields."""
    by_slot: Counter[int] = field(default_factory=Counter)
    pods: set[str] = field(default_factory=set)
    """Pods that have checkpoints."""
    odd: int = 0
    """Number of fields that cannot be decoded."""

    def take(self, name: bytes, value: bytes) -> None:
        if len(name) == WORD_BYTES and spilled_blocks(value) is not None:
            self.spilled += 1
            return
        packed = decode(value)
        self.packed += len(name) == WORD_BYTES
        self.blocks += len(packed.keys)
        columns = np.unpackbits(packed.bits, axis=1, count=len(packed.slots), bitorder="little")
        held = columns.sum(axis=0, dtype=np.int64).tolist()
        self.entries += sum(held)
        for slot, count in zip(packed.slots, held, strict=True):
            self.by_slot[slot] += count


async def survey(access: Access) -> Survey:
    """Read each bucket that can be read once, and count its content."""
    found, seen = Survey(), (-1, set[bytes]())
    async for bucket, page in pages(access):
        if bucket != seen[0]:
            seen = bucket, set()
        new = {name: value for name, value in page.values.items() if name not in seen[1]}
        seen[1].update(new)
        found.pods |= page.checkpoints.keys()
        found.odd += len(page.strange)
        for fields in (page.checkpoints, page.strange, new):
            found.size += sum(len(name) + len(value) for name, value in fields.items())
        for name, value in new.items():
            try:
                found.take(name, value)
            except BadSegmentError:
                found.odd += 1
    return found


async def stats(access: Access) -> dict[str, Any]:
    """Return all statistics as a dict for JSON."""
    damaged = await damage(access)
    found = await survey(access)
    # After the content, so that each claim with content has its record by now.
    pods = await access.pods(sorted({*found.pods, *access.configured}))
    living = living_of(pods)
    held, dead = _held(found, living)
    # Entries that seem dead may belong to a record that was not read.
    unread = access.unread(pods) if dead else ""
    sweeper, left = await access.look(
        [Command((name, access.names.sweeper)) for name in ("GET", "PTTL")]
    )
    servers = await read_servers(access)
    return {
        "url": access.url,
        "prefix": access.names.prefix,
        "schema": SCHEMA,
        "not_reached": access.lacks(),
        "damaged": damaged,
        "empty": access.empty(pods, found.pods),
        "servers": servers,
        "memory_bytes": _sum(one["index_bytes"] for one in servers),
        "segments": {"packed": found.packed, "spilled": found.spilled},
        "blocks": found.blocks,
        "entries": found.entries,
        "bytes": found.size,
        "bytes_per_block": round(found.size / found.blocks, 1) if found.blocks else 0.0,
        "dead_entries": None if unread else dead,
        "not_read": unread,
        "unreadable_fields": found.odd,
        "sweeper": _sweeper(sweeper, -1 if left is None else left),
        "pods": [_pod(seen, held[name]) for name, seen in pods.items()],
    }


def _sum(numbers: Any) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def _held(found: Survey, living: Living) -> tuple[dict[str, Counter[tuple[int, str]]], int]:
    """Return each pod's number of entries by rank and tier, and that of entries no record names.

    Entries at a place that the pod's record does not name yet count under rank -1.
    """
    held: dict[str, Counter[tuple[int, str]]] = {pod: Counter() for pod in living.owners}
    dead = 0
    for slot, count in found.by_slot.items():
        place = living.place(slot)
        if place is None:
            dead += count
        elif place.spot is None:
            held[place.pod][-1, ""] += count
        else:
            held[place.pod][place.spot.rank, place.spot.tier] += count
    return held, dead


def _pod(seen: PodSeen, held: Counter[tuple[int, str]]) -> dict[str, Any]:
    record = seen.record
    problem = seen.problem
    if record is None:
        problem = problem or NO_RECORD
    return {
        "pod": seen.name,
        "token": None if record is None else record.token,
        "sound": record is not None and record.sound,
        "reason": problem or (record.reason if record else ""),
        "building": bool(record and record.building),
        "model": record.claim.model if record and record.claim else "",
        "watch": record.claim.watch if record and record.claim else "",
        "applied": None if record is None else record.applied,
        "audits": None if record is None else record.audits,
        "behind_seconds": record.behind if record and record.sound else None,
        "lease_seconds": seen.lease,
        "log_length": seen.log_length,
        "entries": None if seen.problem else sum(held.values()),
        "ranks": _ranks(seen, held),
    }


def _ranks(seen: PodSeen, held: Counter[tuple[int, str]]) -> list[dict[str, Any]]:
    record = seen.record
    numbers = {rank for rank, _ in held if rank >= 0}
    if record is not None:
        numbers |= record.states.keys()
    ranks = []
    for number in sorted(numbers):
        state = record.states.get(number) if record else None
        ranks.append(
            {
                "rank": number,
                "trust": state.trust if state else "",
                "reason": state.reason if state else "",
                "blocks": dict(record.blocks.get(number, {})) if record else {},
                "entries": {tier: n for (rank, tier), n in sorted(held.items()) if rank == number},
            }
        )
    return ranks


def _sweeper(value: bytes | None, left: int) -> dict[str, Any]:
    name = (value or b"").decode(errors="replace")
    return {
        "sweeping": "" if name.startswith(AT_REST) else name,
        "last": name.removeprefix(AT_REST) if name.startswith(AT_REST) else "",
        "lease_seconds": left / 1000 if left >= 0 else None,
    }


async def read_servers(access: Access) -> list[dict[str, Any]]:
    """Return the Redis nodes that hold buckets, with what each says of its memory, for JSON."""
    names = access.names
    asked = [Call(script("look"), (names.bucket(n),)) for n in access.buckets]
    servers: dict[str, dict[str, Any]] = {}
    answers = zip(access.buckets, await access.ask(asked), strict=True)
    for bucket, (server, memory, size) in answers:
        facts = facts_of(server or b"") | facts_of(memory or b"")
        place = await access.place_of(bucket)
        one = servers.setdefault(
            place,
            {
                "server": _server(facts), "address": place,
                "used_bytes": _number(facts.get("used_memory")),
                "limit_bytes": _number(facts.get("maxmemory")),
                "policy": facts.get("maxmemory_policy"), "is_full": _is_full(facts), "buckets": [],
                "index_bytes": None,
            },
        )  # fmt: skip
        one["buckets"].append(bucket)
        if size is not None:
            one["index_bytes"] = (one["index_bytes"] or 0) + size
    return list(servers.values())


def _server(facts: dict[str, str]) -> str:
    if "valkey_version" in facts:
        return f"Valkey {facts['valkey_version']}"
    return f"Redis {facts['redis_version']}" if "redis_version" in facts else ""


def _is_full(facts: dict[str, str]) -> bool | None:
    """Return whether a node has no room left below its limit; None where it does not say."""
    if "maxmemory" not in facts or "used_memory" not in facts:
        return None
    # Redis does not count the buffers of its replicas and of its log.
    counted = int(facts["used_memory"]) - int(facts.get("mem_not_counted_for_evict", "0"))
    return 0 < int(facts["maxmemory"]) < counted


def _number(text: str | None) -> int | None:
    return int(text) if text else None


def shown(stats: dict[str, Any]) -> RenderableType:
    """Return the statistics of `stats` as tables."""
    return Group(Text(_head(stats)), _server_table(stats), _pod_table(stats))


def _head(stats: dict[str, Any]) -> str:
    sweeper = stats["sweeper"]
    if sweeper["sweeping"]:
        sweeping = f"{sweeper['sweeping']} is sweeping"
    elif sweeper["last"]:
        sweeping = f"last swept by {sweeper['last']}"
    else:
        sweeping = "not swept in the last minute"
    segments = stats["segments"]
    odd = stats["unreadable_fields"]
    return (
        f"{stats['url']}, prefix {stats['prefix']}, schema {stats['schema']}\n"
        f"{stats['blocks']:,} blocks in {segments['packed']:,} packed and "
        f"{segments['spilled']:,} spilled segments, {stats['entries']:,} entries; "
        f"{stats['bytes']:,} bytes, {stats['bytes_per_block']} a block\n"
        f"{dead_words(stats['dead_entries'], stats['not_read'])}; {sweeping}"
        + "".join(f"\n{stats[key]}" for key in ("not_reached", "empty") if stats[key])
        + "".join(f"\n{problem}" for problem in stats["damaged"])
        + (f"\n{odd:,} fields cannot be read: warmpath check-index" if odd else "")
    )


def _server_table(stats: dict[str, Any]) -> Table:
    table = new_table("server, address, >buckets, >their bytes, >memory used, >limit, policy")
    for one in stats["servers"]:
        limit = one["limit_bytes"]
        table.add_row(
            one["server"] or "? (INFO is not permitted)", one["address"], str(len(one["buckets"])),
            _bytes(one["index_bytes"]), _bytes(one["used_bytes"]),
            "none" if limit == 0 else _bytes(limit), one["policy"] or "?",
        )  # fmt: skip
    return table


def _bytes(number: int | None) -> str:
    return "?" if number is None else f"{number / (1 << 20):,.1f} MiB"


def _pod_table(stats: dict[str, Any]) -> Table:
    columns = "pod, >token, >applied, >audits, >lease, >log, >rank, blocks, trust"
    table = new_table(columns)
    for pod in stats["pods"]:
        lease = pod["lease_seconds"]
        cells = [
            pod["pod"],
            *(
                "-" if pod[key] is None else f"{pod[key]:,}"
                for key in ("token", "applied", "audits")
            ),
            "-" if lease is None else f"{lease:.1f} s",
            f"{pod['log_length']:,}",
        ]
        for rank in pod["ranks"] or [None]:
            blocks = (rank or {}).get("blocks", {}).items()
            words = (
                str(rank["rank"]) if rank else "-",
                " ".join(f"{tier} {count:,}" for tier, count in blocks) or "-",
                _trust(pod, rank or {}),
            )
            table.add_row(*map(Text, (*cells, *words)))
            cells = [""] * len(cells)
    return table


def _trust(pod: Mapping[str, Any], rank: Mapping[str, Any]) -> str:
    """Return how far a router may believe a rank, and why, as `Registry.trust_of` decides it."""
    level, reasons = rank.get("trust", ""), [rank.get("reason", "")]
    if not level:
        # A record that cannot be read says nothing of trust.
        level = "not known" if pod["entries"] is None else Level.COLD
    if not pod["sound"]:
        if level == Level.EXACT:
            # The publisher has all of the engine's events, and the index may lack blocks all the same.
            level, reasons = Level.DEGRADED, []
        reasons.append(pod["reason"] or UNWRITTEN)
    return f"{level}: {'; '.join(filter(None, reasons))}"
