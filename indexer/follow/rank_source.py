"""Where one rank's events come from, and how they are to be read."""

from collections.abc import Callable
from dataclasses import dataclass

from indexer.engines.event import Batch


@dataclass(frozen=True, slots=True)
class RankSource:
    """One rank's stream: whose it is and how it is to be read."""

    pod: str
    rank: int
    model: str
    """Seeds the keys; the base model's name, whatever the pod calls it."""
    decode: Callable[[bytes], Batch]
    """The engine's codec; raises MalformedEventError."""
    has_replay: bool
    is_queue: bool = False
    """Whether the engine keeps what was not fetched, as a queue does."""
    topic: str = ""
    """Frames with another topic are not this rank's. Empty: every topic is."""
    capacity: int = 0
    """Blocks of the engine's cache; 0: not known, or said by the engine's own events."""
    said_rank: int | None = None
    """The engine's number of the rank, as its batches say it; None: what they say is not compared."""
    dialect: str = ""
    """How the engine writes batches, where they can be read without being decoded: vllm or sglang."""
