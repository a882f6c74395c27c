"""Checks that this version can read the data under a prefix, and that the server suits the index."""

import asyncio
import logging
import re

from warmpath.indexer.keys.segment import SEGMENT
from warmpath.indexer.shared.layout.names import SCHEMA, KeyNames
from warmpath.indexer.shared.redis.command import (
    Call,
    Command,
    CommandRefusedError,
    Redis,
    Reply,
    UnreachableError,
    good,
    script,
)
from warmpath.process.command_line import version

log = logging.getLogger(__name__)

BY = "by"
"""The field with the version of warmpath that wrote the schema. It decides nothing."""
MOST_BY = 64
"""The most characters of the field `BY` that an error shows."""
OLDEST = (6, 2)
TIMEOUT = 5.0
"""The longest wait for a reply, seconds."""


class SchemaError(Exception):
    """Another version's data lie under the prefix, or the server is too old."""


async def fits(redis: Redis, names: KeyNames, *, timeout: float = TIMEOUT) -> bool:
    """Return whether there is a schema under the prefix. Writes nothing.

    Raises SchemaError where the schema is another version's, CommandRefusedError or UnreachableError.
    """
    [reply] = await redis.run([Command(("HGETALL", names.schema))], timeout=timeout)
    if good(reply):
        judge(names, reply)
    return bool(reply)


def ensure_call(names: KeyNames) -> Call:
    """Return the call that writes this version's schema where there is none, and replies the one there.

    It may be repeated. A writer makes it at each claim, since a Redis that has lost everything has lost
    the schema too. `judge` checks the reply.
    """
    fields: dict[str, str | int] = {**_ours(names), BY: f"warmpath {version()}"}
    arguments = tuple(word for pair in fields.items() for word in pair)
    return Call(script("schema"), (names.schema,), arguments)


def judge(names: KeyNames, reply: Reply) -> None:
    """Check the schema in a reply. Raises SchemaError where it is another version's."""
    ours = _ours(names)
    theirs = {
        name.decode(errors="replace"): value.decode(errors="replace")
        for name, value in zip(reply[::2], reply[1::2], strict=True)
    }
    if all(theirs.get(name) == str(value) for name, value in ours.items()):
        return
    by = theirs.pop(BY, "")
    raise SchemaError(
        f"prefix {names.prefix!r}: the index there has {_list(theirs)}"
        f"{f' (begun by {by[:MOST_BY]})' if by else ''}; this is warmpath {version()}, which "
        f"needs {_list(ours)}. Give this deployment a prefix of its own; or, when no process of the "
        f"other version runs any more, delete the keys {names.prefix}:*; publishers write them again"
    )


def _ours(names: KeyNames) -> dict[str, int]:
    return {"schema": SCHEMA, "buckets": names.buckets, "segment": SEGMENT}


def facts_of(info: bytes) -> dict[str, str]:
    """Return what a server's answer to INFO says, by name."""
    return dict(re.findall(r"^(\w+):(.*?)\r?$", info.decode(errors="replace"), re.MULTILINE))


async def check_server(redis: Redis, *, timeout: float = TIMEOUT) -> list[str]:
    """Return warnings about the server's settings, for its operator; of a cluster, one node is asked.

    Nothing is checked where the server refuses INFO, as it may to an ACL user. Raises SchemaError
    where the server is too old, and UnreachableError.
    """
    [reply] = await redis.run([Command(("INFO",))], timeout=timeout)
    if isinstance(reply, UnreachableError):
        raise reply
    if isinstance(reply, CommandRefusedError):
        return []
    facts = facts_of(reply)
    version = facts.get("redis_version", "")
    numbers = tuple(int(digits) for digits in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST:
        raise SchemaError(
            f"the Redis server is version {version or 'unknown'}; "
            f"the shared index needs {OLDEST[0]}.{OLDEST[1]} or newer, or Valkey"
        )
    warnings = []
    limit, policy = int(facts.get("maxmemory", "0")), facts.get("maxmemory_policy", "noeviction")
    if limit and policy != "noeviction":
        warnings.append(
            f"maxmemory-policy is {policy}: at the limit of {limit} bytes Redis drops parts of the "
            "index at its own choice, and publishers write them again; noeviction is recommended"
        )
    if facts.get("aof_enabled", "0") == "0":
        warnings.append(
            "appendonly is off: after a restart of Redis, publishers write the index anew"
        )
    return warnings


async def log_server_warnings(redis: Redis, *, pause: float = 1.0) -> None:
    """Ask the server each `pause` seconds until it answers; then log the warnings of `check_server`."""
    while True:
        try:
            for line in await check_server(redis):
                log.warning("Redis: %s", line)
        except UnreachableError:
            await asyncio.sleep(pause)
            continue
        except SchemaError as error:
            log.error("%s", error)  # noqa: TRY400 - a traceback would say nothing more
        return


def _list(fields: dict[str, str] | dict[str, int]) -> str:
    return ", ".join(f"{name} {value}" for name, value in fields.items()) or "no schema"
