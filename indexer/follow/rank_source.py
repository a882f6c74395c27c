"""The source of one rank's events, and how to decode them."""

from collections.abc import Callable
from dataclasses import dataclass

from warmpath.indexer.engines.event import Batch


@dataclass(frozen=True, slots=True)
class RankSource:
    """One rank's event stream: its rank, its codec and its properties."""

    pod: str
    rank: int
    model: str
    """The base model's name in the configuration, from which keys derive."""
    decode: Callable[[bytes], Batch]
    """The engine's codec; raises MalformedEventError."""
    has_replay: bool
    is_queue: bool = False
    """Whether the engine queues events until they are fetched."""
    topic: str = ""
    """The topic of this rank's frames; others are ignored. Empty: any topic."""
    capacity: int = 0
    """Blocks of the engine's cache; 0: not known, or in the engine's own events."""
    said_rank: int | None = None
    """The rank's number in the engine's batches; None: it is not checked."""
    dialect: str = ""
    """The format of batches for the compiled scanner: vllm or sglang; empty: they must be decoded."""
