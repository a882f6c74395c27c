"""What is known of a pod when it is asked what looks wrong with it."""

from collections.abc import Sequence
from dataclasses import dataclass

from indexer.trust import Trust
from router.diagnosis.attribution import Row


@dataclass(frozen=True, slots=True)
class RankFacts:
    """What is known of one rank now."""

    number: int
    trust: Trust
    block_size: int
    """Tokens; 0 where no event has told."""
    blocks: int
    """Blocks that it is known to hold."""
    stored: int
    """Blocks that events told of, and of how many that they are gone; since the router started."""
    removed: int
    has_load: bool
    """Whether its engine or a gateway has told of its load lately."""
    capacity: int = 0
    """Blocks of its fastest tier; 0: not known."""
    drifts: int = 0
    """How often more was announced than fits there, since the router started."""
    lag_batches: int = 0
    """Batches of its events that were received and are not followed yet."""


@dataclass(frozen=True, slots=True)
class PodFacts:
    """What is known of one pod now."""

    has_events: bool
    is_well: bool
    """Whether it was asked and says that it is well: then its metrics were asked for too."""
    ranks: Sequence[RankFacts]
    row: Row
    typical_factor: float = 1.0
    """The median calibration of the model's pods."""
    shared: str = ""
    """The shared index that it is followed through, in words; empty where it is not."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that looks wrong. The text does not name the pod."""

    kind: str
    text: str
