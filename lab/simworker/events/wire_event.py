"""Cache events that dialects encode: every engine's own events are turned into these.

Hashes are whole digests; the dialect decides which part of a digest is sent, and in which form. The
fields are those of `vllm/distributed/kv_events.py` of 0.32.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

GPU = "GPU"
CPU = "CPU"


@dataclass(frozen=True, slots=True)
class Stored:
    """Blocks were stored, each the child of the one before it."""

    block_hashes: Sequence[bytes]
    parent_block_hash: bytes | None
    token_ids: Sequence[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = GPU
    lora_name: str | None = None
    extra_keys: Sequence[Sequence[Any] | None] | None = None
    """Extra keys of each block: adapter, multimodal items, a first block's salt; None: no keys."""
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None


@dataclass(frozen=True, slots=True)
class Removed:
    """Blocks were removed."""

    block_hashes: Sequence[bytes]
    medium: str | None = GPU
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


@dataclass(frozen=True, slots=True)
class Cleared:
    """The whole cache was reset."""


WireEvent = Stored | Removed | Cleared


Version = tuple[int, ...]


def version_text(version: Version) -> str:
    """Return a version in the engine's own form, three numbers at least."""
    return ".".join(map(str, (*version, 0, 0)[: max(3, len(version))]))


@dataclass(frozen=True, slots=True)
class Field:
    """One field of an event: its first version, and whether maps have it without a value."""

    name: str
    since: Version = ()
    always: bool = False


class Layout:
    """How events of one version are laid out: arrays of fields in order, or maps.

    An array has all of its version's fields, nil if they have no value; a map has no optional field
    without a value. The engines' own classes encode so, although readers must accept arrays without
    their last fields too.
    """

    def __init__(self, version: Version, *, maps: bool) -> None:
        self._version = version
        self._maps = maps

    def fields(self, fields: Sequence[Field]) -> list[Field]:
        return [field for field in fields if self._version >= field.since]

    def event(self, tag: str, fields: Sequence[Field], values: dict[str, Any]) -> Any:
        """Return an event as a list or a dict, for msgpack to encode."""
        if self._maps:
            written = {
                field.name: values[field.name]
                for field in fields
                if field.always or values[field.name] is not None
            }
            return {"type": tag} | written
        return [tag, *(values[field.name] for field in fields)]
