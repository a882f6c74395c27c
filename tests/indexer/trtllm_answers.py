"""TensorRT-LLM's answers to requests for events, as its serializer writes them."""

import json
from typing import Any

CREATED = {"type": "created", "num_blocks_per_cache_level": [10, 4]}


def block(name: int | str, *tokens: int, level: int = 0) -> dict[str, Any]:
    return {
        "type": "stored_block", "block_hash": name, "cache_level": level, "priority": 35,
        "tokens": [{"type": "unique_token", "token_id": t, "token_extra_id": 0} for t in tokens],
    }  # fmt: skip


def stored(parent: int | str | None, *blocks: dict[str, Any]) -> dict[str, Any]:
    return {"type": "stored", "parent_hash": parent, "blocks": list(blocks)}


def removed(*names: int | str) -> dict[str, Any]:
    return {"type": "removed", "block_hashes": list(names)}


def moved(name: int | str, old: int, new: int) -> dict[str, Any]:
    diff = {"type": "event_diff", "old_value": old, "new_value": new}
    return {"type": "updated", "block_hash": name, "cache_level": diff, "priority": None}


def answer(*datas: dict[str, Any], first: int = 0, window: int = 64) -> bytes:
    events = [
        {"event_id": number, "data": data, "window_size": window}
        for number, data in enumerate(datas, first)
    ]
    return json.dumps(events).encode()
