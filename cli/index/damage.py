"""Finds keys that no process of warmpath can have written: of another type, with absurd numbers."""

from collections.abc import Sequence

from warmpath.cli.index.access import Access
from warmpath.indexer.shared.layout.damage import ask_pod, ask_type, pod_problems
from warmpath.indexer.shared.layout.names import checkpoint
from warmpath.indexer.shared.layout.pages import read_checkpoint
from warmpath.indexer.shared.redis.command import Command
from warmpath.indexer.shared.sweep.swept import batches

HEALS = "wait a minute for the next sweep, which removes it, or call warmpath index sweep"


async def damage(access: Access) -> list[str]:
    """Return a sentence for each damaged key whose node answers; values in segments are not read."""
    names = access.names
    shared = names.schema, names.pods, names.routers, names.sweeper
    buckets = [names.bucket(number) for number in access.buckets]
    await access.look([ask_type(key) for key in (*shared, *buckets)])
    (left,) = await access.look([Command(("PTTL", names.sweeper))])
    found = [f"{names.sweeper} never expires"] if left == -1 else []
    (listed,) = await access.look([Command(("HKEYS", names.pods))])
    for some in batches([name.decode(errors="replace") for name in listed or ()]):
        await access.look([ask_type(names.log(pod)) for pod in some])
        replies = await access.look([one for pod in some for one in ask_pod(names, pod)])
        for number, pod in enumerate(some):
            problems = pod_problems(names, pod, *replies[3 * number : 3 * number + 3])
            found += [f"{key}: {problem}" for key, problem in problems]
        found += await _checkpoints(access, some)
    return [*access.damaged.values(), *found]


async def _checkpoints(access: Access, pods: Sequence[str]) -> list[str]:
    names, buckets = access.names, access.buckets
    words = [checkpoint(pod) for pod in pods]
    asked = [Command(("HMGET", names.bucket(number), *words)) for number in buckets]
    found: list[str] = []
    for number, values in zip(buckets, await access.look(asked), strict=True):
        for pod, value in zip(pods, values or (), strict=False):
            try:
                read_checkpoint(value or b"0:0")
            except ValueError as error:
                found.append(f"{names.bucket(number)}: pod {pod}: {error}")
    return found
