"""Options of TensorRT-LLM's cache, the same for all its windows."""

from collections.abc import Callable
from dataclasses import dataclass

from warmpath.lab.simworker.trtllm.events.event_manager import KVCacheEventManager


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """Options with TensorRT-LLM's names and defaults, except the last three."""

    tokens_per_block: int
    onboard_blocks: bool = True
    """Whether evicted content moves to the secondary pool, and back when a request needs it."""
    enable_partial_reuse: bool = True
    """Whether a request may use a block that shares only its first tokens."""
    copy_on_partial_reuse: bool = True
    """Whether such a block is copied if it is in use or has children."""
    secondary_offload_min_priority: int | None = None
    """A block of a lower priority is not moved to the secondary pool; None for the policy's default."""
    announces_detached: bool = False
    """A request may take a cached leaf over and go on writing in it, because it shares some of its
    tokens or because the leaf is a tail with room. If set, the leaf is then announced as removed.
    TensorRT-LLM up to now announces nothing (its pull request 16335 would), so that a reader of its
    events counts on blocks that are gone."""
    event_manager: KVCacheEventManager | None = None
    clock: Callable[[], float] = lambda: 0.0
    """Returns seconds; priorities end by it."""
