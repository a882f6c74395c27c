"""What an engine is to the server and to simulations: requests in, tokens and cache events out.

An engine knows neither sockets nor clocks. It says how many seconds a step takes; whoever drives it,
in real time (`simworker/server/shell.py`) or on a virtual clock, lets them pass between `begin_step` and
`end_step`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

EventT_co = TypeVar("EventT_co", covariant=True)

OnTokens = Callable[[list[int], bool], None]
"""Takes newly generated tokens, and whether they are the last."""


class RefusedError(Exception):
    """A request that can never be served; says why."""


class EngineFailedError(Exception):
    """A step could not be taken; the worker cannot go on."""


class BrokenInvariantError(Exception):
    """A stateful part contradicts itself: a bug of ours."""


@dataclass(slots=True, eq=False)
class Generation:
    """One request for tokens, and how far it has come."""

    request_id: str
    prompt: Sequence[int]
    max_tokens: int
    on_tokens: OnTokens
    cache_salt: str = ""
    lora_name: str = ""
    lora_path: str = ""
    """Where the adapter lies, as the engine was told: it goes into vLLM's hashes."""
    priority: int = 0
    """Lower comes first, where the scheduler's policy is by priority."""
    skip_reading_prefix_cache: bool = False
    kv_cache_report_mode: str = "incremental"
    """`full`: blocks that are found cached are announced again (vLLM 0.26 and later)."""
    session_id: str = ""
    """Goes into the events of blocks that the request stores."""
    prompt_hashes: Sequence[bytes] | None = None
    """Hashes of the prompt's full blocks, where nothing but they and its length is known: then the
    ids in `prompt` mean nothing, and `range(n)` will do."""
    num_cached_tokens: int = -1
    """Prompt tokens found cached when it was first scheduled; -1 before. Set by the engine."""
    num_output_tokens: int = 0
    """Set by the engine."""
    num_preemptions: int = 0
    """Set by the engine."""

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt)


@dataclass(frozen=True, slots=True)
class Load:
    """An engine's figures: the first three as they are, the others since its start."""

    running: int
    waiting: int
    kv_cache_usage: float
    """Share of the usable blocks that requests hold, 0 to 1."""
    prefix_cache_queries: int
    """Prompt tokens looked up."""
    prefix_cache_hits: int
    """Of these, tokens found."""
    preemptions: int


class Engine(Protocol[EventT_co]):
    """One engine, stepped from outside. `EventT_co` is what it tells of its cache."""

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""

    def submit(self, generation: Generation) -> None:
        """Take a request. Raises RefusedError where it can never be served."""

    def abort(self, request_id: str) -> None:
        """Drop a request; unknown ones are passed over. What it had computed stays cached."""

    def begin_step(self, horizon: float = 0.0) -> float:
        """Schedule a step; return its modelled seconds.

        `horizon` are the seconds in which nothing will be submitted or aborted. An engine may use
        them to take several steps at once, where the outcome is that of taking them one by one.
        """

    def end_step(self) -> Sequence[EventT_co]:
        """End the step begun: hand out its tokens; return what happened to the cache."""

    def load(self) -> Load:
        """Return the figures that metrics show."""

    def reset_prefix_cache(self, *, reset_external: bool = False) -> bool:
        """Forget all cached content; False, and nothing done, while requests hold blocks.

        With `reset_external` what host memory has is forgotten too, also where the first could not
        be; False while that is being read. An engine that cannot tell the two apart forgets both.
        """
