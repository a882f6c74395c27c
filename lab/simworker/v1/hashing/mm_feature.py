"""An image, a sound or a video in a prompt, where equal placeholder tokens take its place."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class PlaceholderRange:
    """The placeholder tokens of one item in a prompt."""

    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class MultiModalFeatureSpec:
    """One item. Only its identifier and its position matter to the cache."""

    data: Any
    """The item's data, which the cache never reads."""
    modality: str
    identifier: str
    """The hash of its content, from the engine's front end or from the user."""
    mm_position: PlaceholderRange
    mm_hash: str | None = None
