"""`warmpath check-index`: compares the shared index with the publishers' snapshots of their pods.

Caches change while the index is read. So each publisher first sends a snapshot; the index is read
once it has all changes up to there; then each publisher sends another. Keys in both snapshots, or
in neither, are compared with the index (`difference.py`). A pod with differences is compared up to
ROUNDS times, and a difference counts only if it is found each time.
"""

import argparse
import asyncio
import json
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from warmpath.cli.asking import print_rich
from warmpath.cli.index.access import Access, PodSeen, damage, dead_words
from warmpath.cli.index.command import act_on_index, add_access
from warmpath.indexer.shared.layout.record import Claim, SpotOf
from warmpath.indexer.shared.replica.run import Scan
from warmpath.lab.verify.difference import (
    NOTHING,
    Compared,
    Difference,
    Keys,
    NotComparableError,
    Truth,
    compare,
    in_both,
    truth_of,
)
from warmpath.lab.verify.structure import Structure, check_structure
from warmpath.process.command_line import FINE, FOUND, NO_ANSWER, command_parser

ROUNDS = 3
PODS_AT_ONCE = 16
"""Number of pods whose keys are in memory at a time."""
POLL = 0.02
ANEW = "it was claimed again meanwhile"


def main(argv: Sequence[str] | None = None) -> int:
    """Compare the shared index in Redis with what publishers say that their pods hold."""
    parser = command_parser(
        "check-index", main.__doc__, "warmpath check-index --config router.toml"
    )
    add_access(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return act_on_index("check-index", _show, parser.parse_args(argv))


async def _show(args: argparse.Namespace, access: Access) -> int:
    checked = await check(access)
    if args.json:
        print(json.dumps(as_json(checked)))
    else:
        print_rich(shown(checked))
    if not checked.is_well:
        return FOUND
    return FINE if checked.is_whole else NO_ANSWER


@dataclass(slots=True)
class Checked:
    """The result of a check."""

    pods: dict[str, Compared]
    structure: Structure
    empty: str = ""
    """The text that no publisher has written to the index; empty if one has."""
    not_reached: str = ""
    """How many buckets could not be read, and why; empty if all could."""
    damaged: Sequence[str] = ()
    """A sentence for each key that no process of warmpath can have written."""

    @property
    def is_well(self) -> bool:
        """Whether no fault was found in the pods and buckets that could be read."""
        return not (self.structure.problems or self.damaged) and not any(
            one.differences for one in self.pods.values()
        )

    @property
    def is_whole(self) -> bool:
        """Whether every pod was compared, with a block or more in all."""
        return not (self.nothing_compared or self.not_reached or self.not_compared)

    @property
    def not_compared(self) -> int:
        """How many pods could not be compared."""
        return sum(bool(one.problem) for one in self.pods.values())

    @property
    def nothing_compared(self) -> str:
        """Why no block of any pod was compared; empty if one was."""
        if any(one.keys or one.differences for one in self.pods.values()):
            return ""
        if said := self.empty or self.not_reached:
            return said
        if self.not_compared == len(self.pods):
            return "no pod could be compared, each for the reason beside it"
        if changed := sum(one.changed for one in self.pods.values()):
            return f"each of the {changed:,} blocks came or went meanwhile; check again"
        return "the publishers that answered hold no block"


async def check(access: Access) -> Checked:
    """Check the buckets' structure, and compare every pod with its publisher."""
    damaged = await damage(access)
    structure = await check_structure(access)
    pods = await access.pods(sorted({*structure.pods, *access.configured}))
    if lacks := access.lacks():
        # A publisher does not say which keys lie in the buckets that were not reached.
        unread = {name: Compared(seen.problem or lacks) for name, seen in pods.items()}
        return Checked(unread, structure, not_reached=lacks, damaged=damaged)
    names = list(pods)
    compared: dict[str, Compared] = {}
    for start in range(0, len(names), PODS_AT_ONCE):
        compared |= await _compare_pods(access, names[start : start + PODS_AT_ONCE])
    empty = access.empty(pods, structure.pods)
    return Checked(compared, structure, empty, access.lacks(), damaged)


async def _compare_pods(access: Access, names: Iterable[str]) -> dict[str, Compared]:
    compared: dict[str, Compared] = {}
    doubtful = list(names)
    for round_ in range(ROUNDS):
        for name, one in (await _round(access, doubtful)).items():
            if round_:
                one.differences = in_both(compared[name].differences, one.differences)
            compared[name] = one
        doubtful = [name for name in doubtful if compared[name].differences]
        if not doubtful:
            break
    return compared


async def _round(access: Access, names: list[str]) -> dict[str, Compared]:
    """Compare the pods of these names once."""
    firsts = await _each({name: _first(access, name) for name in names})
    claimed = {name: one for name, one in firsts.items() if isinstance(one, tuple)}
    held = await _index(access, [claim for claim, _ in claimed.values()])
    pods = await access.pods(list(claimed))
    seconds = await _each(
        {name: _second(access, name, claim, pods) for name, (claim, _) in claimed.items()}
    )
    unknown = {name: one for name, one in firsts.items() if isinstance(one, Compared)}
    return unknown | {
        name: one if isinstance(one, Compared) else compare(claimed[name], one, held)
        for name, one in seconds.items()
    }


Seen = tuple[Claim, Truth]
"""A pod's claim and snapshot."""


async def _each(asked: Mapping[str, Awaitable[Seen]]) -> dict[str, Seen | Compared]:
    """Return each pod's claim and snapshot, or the reason why it cannot be compared."""

    async def one(pod: Awaitable[Seen]) -> Seen | Compared:
        try:
            return await pod
        except NotComparableError as error:
            return Compared(problem=str(error))

    found = await asyncio.gather(*map(one, asked.values()))
    return dict(zip(asked, found, strict=True))


async def _first(access: Access, name: str) -> Seen:
    """Return a pod's claim and snapshot once the index has it. Raises NotComparableError."""
    claim, applied = await _claim(access, name)
    truth = await truth_of(name, claim, access.credentials, access.timeout)
    try:
        async with asyncio.timeout(access.timeout):
            while True:
                # Once all of the snapshot is applied, the claim names every place in it.
                now, applied = await _claim(access, name)
                if now.base != claim.base:
                    raise NotComparableError(ANEW)
                if applied >= truth.sequence:
                    return now, truth
                await asyncio.sleep(POLL)
    except TimeoutError as error:
        raise NotComparableError(
            f"the index has its changes up to {applied}, and did not reach {truth.sequence} "
            f"within {access.timeout:g} s"
        ) from error


async def _claim(access: Access, name: str) -> tuple[Claim, int]:
    """Return a pod's claim, and the journal's position up to which the index has its changes.

    Raises NotComparableError.
    """
    seen = await access.pod(name)
    if seen.problem:
        raise NotComparableError(seen.problem)
    if seen.record is None:
        raise NotComparableError(
            "no publisher holds it: its lease is over, or it was never claimed"
        )
    if not seen.record.sound or seen.record.claim is None:
        raise NotComparableError(f"not sound: {seen.record.reason}")
    return seen.record.claim, seen.record.applied


async def _second(access: Access, name: str, claim: Claim, pods: Mapping[str, PodSeen]) -> Seen:
    """Return a pod's claim and snapshot after the index was read. Raises NotComparableError."""
    if pods[name].problem:
        raise NotComparableError(pods[name].problem)
    record = pods[name].record
    if record is None or record.claim is None or record.claim.base != claim.base:
        raise NotComparableError(ANEW)
    if not record.sound:
        raise NotComparableError(f"not sound: {record.reason}")
    return record.claim, await truth_of(name, record.claim, access.credentials, access.timeout)


async def _index(access: Access, claims: Iterable[Claim]) -> dict[int, Keys]:
    """Return the sorted keys of each slot of the claims; a key in two segments comes twice."""
    # Places that a claim gets later are not compared.
    wanted = [
        claim.slot(number)
        for claim in claims
        for number, spot in enumerate(claim.places)
        if spot is not None
    ]
    found: dict[int, list[Keys]] = {slot: [] for slot in wanted}
    scan = Scan(access.names, wanted)
    while wanted and not scan.is_over:
        disruptions = access.redis.disruptions
        replies = await access.ask(scan.asked(disruptions))
        for keys in scan.take(replies, access.redis.disruptions):
            for slot, some in keys.items():
                found[slot] += some
    return {
        slot: np.sort(np.concatenate(some)) if some else NOTHING for slot, some in found.items()
    }


def as_json(checked: Checked) -> dict[str, Any]:
    """Return the result as a dict for JSON."""
    return {
        "well": checked.is_well,
        "whole": checked.is_whole,
        "nothing_compared": checked.nothing_compared,
        "empty": checked.empty,
        "not_reached": checked.not_reached,
        "structure": checked.structure.problems,
        "damaged": checked.damaged,
        "dead_entries": checked.structure.dead,
        "unknown_entries": checked.structure.unknown,
        "not_read": checked.structure.unread,
        "pods": [
            {
                "pod": name,
                "problem": one.problem,
                "sequence": one.sequence,
                "keys": one.keys,
                "changed": one.changed,
                "differences": [
                    {
                        "rank": spot.rank,
                        "tier": spot.tier,
                        "group": spot.group,
                        **{kind: _hex(keys) for kind, keys in _kinds(difference)},
                    }
                    for spot, difference in one.differences.items()
                ],
            }
            for name, one in checked.pods.items()
        ],
    }


def _kinds(difference: Difference) -> list[tuple[str, Keys]]:
    return [
        ("missing", difference.missing),
        ("extra", difference.extra),
        ("twice", difference.twice),
    ]


def _hex(keys: Keys) -> list[str]:
    return [f"{key:016x}" for key in keys.tolist()]


def shown(checked: Checked) -> RenderableType:
    """Return the result as a table and sentences."""
    table = Table()
    for name in ("pod", "compared", "changed meanwhile", "differences"):
        table.add_column(
            name, justify="right" if name in {"compared", "changed meanwhile"} else "left"
        )
    for name, one in checked.pods.items():
        if one.problem:
            table.add_row(Text(name), "-", "-", Text(f"could not be compared: {one.problem}"))
            continue
        words = "\n".join(_words(spot, difference) for spot, difference in one.differences.items())
        table.add_row(Text(name), f"{one.keys:,}", f"{one.changed:,}", Text(words or "none"))
    structure = checked.structure
    lines = [Text(problem) for problem in (*checked.damaged, *structure.problems)]
    if not lines and not (checked.empty or checked.not_reached):
        lines = [Text("Every value can be read, and every sound pod's writer has every bucket.")]
    if structure.dead is None:
        words = dead_words(None, structure.unread)
        lines.append(Text(f"{words[0].upper()}{words[1:]}."))
    elif structure.dead:
        lines.append(Text(f"{dead_words(structure.dead, '')}; no router counts them."))
    lines.extend(map(Text, _left_out(checked)))
    return Group(table, *lines)


def _left_out(checked: Checked) -> Iterator[str]:
    """Yield sentences about what was not compared; these come last, as they limit all others."""
    if said := checked.nothing_compared:
        yield f"Nothing was compared with a publisher: {said}."
        return
    if checked.not_reached:
        yield f"{checked.not_reached}."
    if count := checked.not_compared:
        yield f"Not compared with a publisher: {count} of {len(checked.pods)} pods."


def _words(spot: SpotOf, difference: Difference) -> str:
    counted = [(kind, keys) for kind, keys in _kinds(difference) if len(keys)]
    examples = ", ".join(_hex(counted[0][1][:3]))
    numbers = ", ".join(f"{len(keys):,} {kind}" for kind, keys in counted)
    return f"rank {spot.rank} {spot.tier} group {spot.group}: {numbers} (such as {examples})"
