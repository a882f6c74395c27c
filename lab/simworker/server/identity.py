"""A worker's identity, as its clients see it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Identity:
    """The model that a worker serves, with the limits of requests."""

    model: str
    engine: str
    """The engine whose own endpoints it serves: `vllm`, `sglang` or `trtllm`."""
    vocab_size: int
    max_model_len: int
    stream_interval: int
    """Tokens in a chunk of a streamed answer; the first token goes out at once."""
    priorities: bool
    """Whether the scheduler's policy is `priority`."""
    streams: bool = True
    """Whether the engine publishes its events over ZMQ."""
