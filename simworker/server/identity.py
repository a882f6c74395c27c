"""What a worker is to its clients."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Identity:
    """What the worker serves, and as what."""

    model: str
    vocab_size: int
    max_model_len: int
    stream_interval: int
    """Tokens a chunk of a streamed answer, but for the first, which goes out at once."""
    priorities: bool
    """Whether the scheduler's policy is by priority."""
