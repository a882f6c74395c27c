"""How recordings of vLLM's scheduler write prompts and events."""

import json
import zlib
from itertools import groupby
from operator import itemgetter
from typing import Any


def prompt_of(shape: list[int]) -> list[int]:
    """Return a prompt: which prefix, its length, first further token, number of further tokens."""
    prefix, length, first, more = shape
    tokens = [100 * prefix + 3 * index for index in range(length)]
    return tokens + [(first + 7 * index) % 1000 for index in range(more)]


def written(event: Any) -> list[Any]:
    match type(event).__name__:
        case "BlockStored":
            return ["stored", event.block_hashes, event.parent_block_hash, event.token_ids,
                    event.lora_name, event.group_idx]  # fmt: skip
        case "BlockRemoved":
            return ["removed", event.block_hashes, event.group_idx]
        case "AllBlocksCleared":
            return ["cleared"]
    raise TypeError(event)


def written_of_host(event: Any) -> list[Any]:
    """Return an event with all its fields, as recordings of offloading have it."""
    if type(event).__name__ == "BlockRemoved":
        return ["removed", event.block_hashes, event.group_idx, event.medium]
    return [
        "stored", event.block_hashes, event.parent_block_hash, event.token_ids, event.block_size,
        event.lora_id, event.lora_name, event.extra_keys, event.group_idx, event.medium,
        event.kv_cache_spec_kind, event.kv_cache_spec_sliding_window,
    ]  # fmt: skip


def checksum(events: list[list[Any]]) -> int:
    """Return the CRC-32 of events as JSON."""
    return zlib.crc32(json.dumps(events).encode())


def summary(events: list[list[Any]]) -> list[int]:
    """Return how many chunks were stored, how many hashes removed, and the checksum of the events.

    Stored events between removals are sorted: vLLM takes a job's chunks from a set, in any order.
    """
    told = [
        event
        for kind, run in groupby(events, key=itemgetter(0))
        for event in (sorted(run, key=repr) if kind == "stored" else run)
    ]
    removed = sum(len(event[1]) for event in told if event[0] == "removed")
    return [sum(event[0] == "stored" for event in told), removed, checksum(told)]
