"""Turns deltas into changes of the shared index, by segment and slot, and changes into portions."""

from array import array
from collections.abc import Iterable, Iterator, Sequence

from warmpath.indexer.engines.event import Tier
from warmpath.indexer.keys.key import words_of
from warmpath.indexer.shared.writer.claimed import Claimed
from warmpath.indexer.watch.pod_cache import Contents
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2 as pb

PORTION_KEYS = 8192
"""Keys written in one round trip to all buckets: 64 KiB."""

Where = tuple[int, int]
"""A segment and a slot."""
KeysOf = tuple[Sequence[int], Sequence[int]]
"""Keys that are added there, and keys that are gone from there."""
Changes = dict[Where, KeysOf]


def net(claimed: Claimed, deltas: Iterable[pb.Delta]) -> Changes:
    """Apply deltas to `claimed`; return their changes, which give each key its last state."""
    last: dict[int, dict[int, tuple[bool, int]]] = {}
    """By slot and key: whether the key is held after the last delta that names it, and its segment."""
    for delta in deltas:
        rank = delta.state.rank
        for change in delta.changes:
            if change.HasField("emptied"):
                for slot in claimed.slots(rank):
                    last.pop(slot, None)
                claimed.drop(rank)
                continue
            added = change.HasField("added")
            said = change.added if added else change.gone
            spot = Tier(said.tier), said.group
            words = last.setdefault(claimed.slot(rank, spot), {})
            keys = words_of(said.keys)
            claimed.count(rank, spot, len(keys) if added else -len(keys))
            start = 0
            for segment, count in zip(said.segments, said.counts, strict=True):
                for key in keys[start : start + count]:
                    words[key] = added, segment
                start += count
            if start != len(keys):
                raise ValueError("a delta does not say in which segments its keys lie")
        claimed.say([delta.state])
    changes: dict[Where, tuple[list[int], list[int]]] = {}
    for slot, keys_said in last.items():
        for key, (held, segment) in keys_said.items():
            changes.setdefault((segment, slot), ([], []))[0 if held else 1].append(key)
    return dict(changes)


def whole(claimed: Claimed, contents: Iterable[Contents]) -> Iterator[tuple[Where, KeysOf]]:
    """Count all keys in `claimed` at once; return an iterator over the changes that write them."""
    found = list(contents)
    for one in found:
        claimed.slot(one.rank, one.spot)
        claimed.count(one.rank, one.spot, len(one.keys))
    return _whole(claimed, found)


def _whole(claimed: Claimed, contents: Iterable[Contents]) -> Iterator[tuple[Where, KeysOf]]:
    for one in contents:
        slot = claimed.slot(one.rank, one.spot)
        for start in range(0, len(one.keys), PORTION_KEYS):
            end = start + PORTION_KEYS
            by_segment: dict[int, array[int]] = {}
            for key, segment in zip(one.keys[start:end], one.segments[start:end], strict=True):
                by_segment.setdefault(segment, array("Q")).append(key)
            for segment, keys in by_segment.items():
                yield (segment, slot), (keys, ())


def portions(changes: Iterable[tuple[Where, KeysOf]]) -> Iterator[Changes]:
    """Yield changes in portions of about `PORTION_KEYS` keys each; no change is split."""
    portion: Changes = {}
    keys = 0
    for where, (added, gone) in changes:
        if keys >= PORTION_KEYS or where in portion:
            yield portion
            portion, keys = {}, 0
        portion[where] = added, gone
        keys += len(added) + len(gone)
    if portion:
        yield portion
