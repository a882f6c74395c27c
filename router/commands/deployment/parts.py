"""Checks of a deployment's parts beside the pods: the certificates' dates, and Redis."""

import argparse
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from router.commands.deployment.check import Check
from router.commands.index.access import FILES, AccessError, opened
from router.commands.index.stats import read_servers
from router.config.certificates import dated
from router.config.mistakes import dotted
from router.config.schema import Config

POLICY = "noeviction"
RULE = "docs/shared-index.md#the-acl-rule"


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
    subject = "Redis"
    options = argparse.Namespace(
        config=config, url="", user="", prefix=None, timeout=seconds, **dict.fromkeys(FILES, "")
    )
    try:
        async with opened(options, may_be_empty=True) as access:
            # These three calls use the rights that a router needs to read.
            await access.pods()
            empty, found = access.lacking, await read_servers(access)
    except AccessError as error:
        said = str(error)
        if "refuses the user a command" in said:
            change = f"give shared-index.user the ACL rule ({RULE})"
        elif "refuses user or password" in said:
            change = "shared-index.user, shared-index.password-file"
        elif "called without any password" in said:
            change = "this Redis has no password: take shared-index.password-file away"
        elif "SENTINEL" in said or "cluster support disabled" in said:
            change = "a Redis of another kind answers: the scheme of shared-index.url"
        else:
            change = "start Redis, or change shared-index.url"
        return [Check(subject, "answer", "WRONG", said, change)]
    names = ", ".join(sorted({one["server"] for one in found if one["server"]}))
    if empty:
        change = "shared-index.prefix, or start publishers with --redis"
        answer = Check(subject, "answer", "WRONG", empty, change)
    else:
        text = f"{url} answers, and the user may read {names}".rstrip()
        answer = Check(subject, "answer", "ok", text)
    checks = [answer]
    policies = {one["policy"] for one in found if one["policy"]}
    if not policies:
        text = "the user may not call INFO, which the ACL rule does not give"
        checks.append(Check(subject, "maxmemory-policy", "not known", text))
    elif policies == {POLICY}:
        checks.append(Check(subject, "maxmemory-policy", "ok", POLICY))
    else:
        text = f"{', '.join(sorted(policies))} deletes parts of the index when memory is short"
        checks.append(
            Check(subject, "maxmemory-policy", "WRONG", text, f"maxmemory-policy {POLICY} in Redis")
        )
    return checks
