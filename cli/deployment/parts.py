"""Checks of a deployment's parts beside the pods: the certificates' dates, and Redis."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from warmpath.cli.deployment.check import Check
from warmpath.cli.index.access import MOST_NAMED, AccessError
from warmpath.cli.index.damage import HEALS, damage
from warmpath.cli.index.open import FILES, opened
from warmpath.cli.index.stats import read_servers
from warmpath.indexer.shared.redis.fault import OUT_OF_MEMORY, Fault, hint_of
from warmpath.router.config.certificates import dated
from warmpath.router.config.mistakes import dotted
from warmpath.router.config.schema import Config

POLICY = "noeviction"
RULE = "docs/shared-index.md#the-acl-rule"
REDIS = "Redis"
NO_INFO = "the user may not call INFO, which the ACL rule does not give"
CHANGES = {
    Fault.SILENCE: "start Redis, or change shared-index.url",
    Fault.RIGHT: f"give shared-index.user the ACL rule ({RULE})",
    Fault.KIND: "a Redis of another kind answers: the scheme of shared-index.url",
    Fault.OTHER: "look at Redis' log, or change shared-index.url",
}
"""What to do about each fault where its error has no hint."""


def certificates(config: Config, folder: Path, now: datetime) -> Iterator[Check]:
    """Yield whether each certificate can be used, and is still to be for a while."""
    for one in dated(config, folder):
        key = dotted(one.at)
        if said := one.problem(now) or one.warning(now):
            yield Check("certificate", key, "WRONG", said, f"put a new one into {one.path}")
        else:
            yield Check("certificate", key, "ok", f"valid until {one.validity.ends:%Y-%m-%d}")


async def shared_index(config: Path, url: str, seconds: float) -> list[Check]:
    """Return whether Redis answers, may be used, and keeps what it has."""
    options = argparse.Namespace(
        config=config, url="", user="", prefix=None, timeout=seconds, **dict.fromkeys(FILES, "")
    )
    try:
        async with opened(options, may_be_empty=True) as access:
            # These four calls use the rights that a router needs to read.
            damaged = await damage(access)
            pods = await access.pods()
            empty, found = access.lacking, await read_servers(access)
    except AccessError as error:
        # The hint stands at the error's end, and would be said twice.
        hint = hint_of(error, "shared-index.")
        said = str(error).removesuffix(f" ({hint})")
        return [Check(REDIS, "answer", "WRONG", said, hint or CHANGES[error.fault])]
    names = ", ".join(sorted({one["server"] for one in found if one["server"]}))
    if empty:
        change = "shared-index.prefix, or start publishers with --redis"
        answer = Check(REDIS, "answer", "WRONG", empty, change)
    else:
        text = f"{url} answers, and the user may read {names}".rstrip()
        answer = Check(REDIS, "answer", "ok", text)
    records = {pod: seen.record for pod, seen in pods.items() if seen.record}
    reasons = {pod: record.reason for pod, record in records.items() if not record.sound}
    return [answer, _keys(damaged), _policy(found), _memory(found, reasons)]


def _keys(damaged: Sequence[str]) -> Check:
    """Return whether all keys are as warmpath writes them."""
    if not damaged:
        return Check(REDIS, "keys", "ok", "all are as warmpath writes them")
    more = len(damaged) - MOST_NAMED
    text = "; ".join(damaged[:MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")
    return Check(REDIS, "keys", "WRONG", text, HEALS)


def _policy(servers: Sequence[Mapping[str, Any]]) -> Check:
    """Return whether Redis keeps the index when memory is short."""
    policies = {one["policy"] for one in servers if one["policy"]}
    if not policies:
        return Check(REDIS, "maxmemory-policy", "not known", NO_INFO)
    if policies == {POLICY}:
        return Check(REDIS, "maxmemory-policy", "ok", POLICY)
    text = f"{', '.join(sorted(policies))} deletes parts of the index when memory is short"
    return Check(REDIS, "maxmemory-policy", "WRONG", text, f"maxmemory-policy {POLICY} in Redis")


def _memory(servers: Sequence[Mapping[str, Any]], reasons: Mapping[str, str]) -> Check:
    """Return whether Redis takes writes: by its own figures, else by what publishers say of theirs.

    `reasons` says why each pod's part of the index may differ from its engine's cache.
    """
    name, change = "maxmemory", "raise maxmemory in Redis, or give Redis more nodes"
    full = [one for one in servers if one["is_full"] and one["policy"] == POLICY]
    if full:
        used = "; ".join(
            f"{one['address']} uses {one['used_bytes']:,} of {one['limit_bytes']:,} bytes"
            for one in full
        )
        return Check(REDIS, name, "WRONG", f"Redis is full and refuses writes: {used}", change)
    if refused := [pod for pod, reason in reasons.items() if reason.startswith(OUT_OF_MEMORY)]:
        text = f"Redis is full and refuses the writes of {', '.join(refused[:MOST_NAMED])}"
        return Check(REDIS, name, "WRONG", text, change)
    if all(one["is_full"] is None for one in servers):
        return Check(REDIS, name, "not known", NO_INFO)
    return Check(REDIS, name, "ok", "there is room")
