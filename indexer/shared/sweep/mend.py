"""The steps of a pass, and those that remove what no writer wrote, as after a command by hand.

Whatever is removed is missed by its writer, which then writes everything anew. So a thing that is
removed by mistake, since it was written while it was looked at, does no harm either.
"""

import logging
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from warmpath.indexer.keys.segment_value import BadSegmentError, decode, spilled_blocks
from warmpath.indexer.shared.layout.damage import ask_pod, heal_call, pod_problems, wrong_type
from warmpath.indexer.shared.layout.names import KeyNames, checkpoint
from warmpath.indexer.shared.layout.pages import Page, read_checkpoint
from warmpath.indexer.shared.redis.command import Call, Command, Reply, script
from warmpath.indexer.shared.writer.calls import FENCE_MS

log = logging.getLogger(__name__)

Asked = list[Command | Call]
Item = TypeVar("Item")
Result = TypeVar("Result")
Steps = Generator[Asked, list[Reply], Result]
"""Commands to run, one list after the other, and their result. Send the replies of each list.

An error among them ends the steps."""

AT_ONCE = 256
"""How many pods or fields one list of commands, or one command, is about, at most."""


@dataclass(slots=True)
class Swept:
    """Counts of what passes have done so far."""

    fields: int = 0
    """Segments, and blocks of spilled segments, read."""
    noted: int = 0
    """Fields that seemed to hold dead slots."""
    purged: int = 0
    """Fields that dead slots were taken out of."""
    retired: int = 0
    """Checkpoints deleted."""
    forgotten: int = 0
    """Pods removed from the hash of pods."""
    doubted: int = 0
    """How often a bucket was skipped, since a record that was read was not the latest."""
    healed: int = 0
    """Keys and fields removed that no writer can have written."""
    passes: int = 0
    """Passes that went to the end."""
    failed: int = 0
    """Passes that ended early."""


def batches(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """Yield the items in parts of at most `AT_ONCE`."""
    for start in range(0, len(items), AT_ONCE):
        yield items[start : start + AT_ONCE]


def mend_shared(names: KeyNames, swept: Swept) -> Steps[None]:
    """Remove damaged keys that belong to no pod: the hashes of pods and routers, buckets, reports."""
    buckets = [names.bucket(number) for number in range(names.buckets)]
    yield from _heal([(key,) for key in (names.pods, names.routers, *buckets)], swept)
    pods, routers = yield [Command(("HKEYS", names.pods)), Command(("HKEYS", names.routers))]
    yield from _heal([(names.reports(_text(name)),) for name in routers], swept)
    if unnamed := [name for name in pods if _text(name).encode() != name]:
        _note(swept, f"{names.pods}: {len(unnamed)} names of pods are no text")
        for some in batches(unnamed):
            yield [Command(("HDEL", names.pods, *some))]


def mend_pods(names: KeyNames, pods: Sequence[str], swept: Swept) -> Steps[None]:
    """Remove damaged records, logs and fences of pods; note each in `swept`."""
    for some in batches(pods):
        yield from _heal(
            [(names.record(pod), names.log(pod), names.fence(pod)) for pod in some], swept
        )
        replies = yield [one for pod in some for one in ask_pod(names, pod)]
        doomed: Asked = []
        for number, pod in enumerate(some):
            for key, problem in pod_problems(names, pod, *replies[3 * number : 3 * number + 3]):
                doomed.append(
                    Command(("UNLINK", key))
                    if key == names.record(pod)
                    else Call(script("outlive"), (key,), (0, FENCE_MS))
                )
                _note(swept, f"{key}: {problem}")
        if doomed:
            yield doomed


def mend_bucket(names: KeyNames, bucket: int, page: Page, swept: Swept) -> Steps[None]:
    """Remove what is damaged on a page of a bucket, and leave it out of the page.

    For a segment that cannot be read the whole bucket is removed: every writer misses that.
    """
    key = names.bucket(bucket)
    doomed = list(page.strange)
    if doomed:
        _note(
            swept, f"{key}: {len(doomed)} fields are none of warmpath's, such as {doomed[0][:40]!r}"
        )
    for pod, value in list(page.checkpoints.items()):
        try:
            read_checkpoint(value)
        except ValueError as error:
            doomed.append(checkpoint(pod))
            del page.checkpoints[pod]
            _note(swept, f"{key}: pod {pod}: {error}")
    problem = ""
    for field, value in list(page.values.items()):
        try:
            if spilled_blocks(value) is None:
                decode(value)
        except BadSegmentError as error:
            del page.values[field]
            problem = problem or f"{key}: field {field.hex()}: {error}"
    commands: Asked = [Command(("HDEL", key, *some)) for some in batches(doomed)]
    if problem:
        commands.append(Command(("UNLINK", key)))
        _note(swept, problem)
    if commands:
        yield commands


def _text(name: bytes) -> str:
    return name.decode(errors="replace")


def _heal(parts: Sequence[tuple[str, ...]], swept: Swept) -> Steps[None]:
    """Remove the keys that are not of warmpath's type for them; those of a part have one hash tag."""
    for some in batches(parts):
        replies = yield [heal_call(*keys) for keys in some]
        for keys, removed in zip(some, replies, strict=True):
            for place in removed:
                _note(swept, wrong_type(keys[place - 1]))


def _note(swept: Swept, problem: str) -> None:
    swept.healed += 1
    log.warning("the shared index: %s; it was removed", problem)
