"""An image, a sound or a video in a prompt: all tokens that stand for it are alike."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class PlaceholderRange:
    """The tokens of a prompt that stand for an item."""

    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class MultiModalFeatureSpec:
    """One item. Only what it is called and where it lies matters to the cache."""

    data: Any
    """The item's own; never looked at."""
    modality: str
    identifier: str
    """Its content's hash, made by the engine's front end or given by the user."""
    mm_position: PlaceholderRange
    mm_hash: str | None = None
