"""The contract of an engine with the server and with simulations: requests in, tokens and events out.

An engine knows neither sockets nor clocks. It returns the seconds that a step takes; its driver, in real
time (`lab/simworker/server/shell.py`) or on a virtual clock, lets them pass between `begin_step` and
`end_step`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

EventT_co = TypeVar("EventT_co", covariant=True)

OnTokens = Callable[[list[int], bool], None]
"""Takes newly generated tokens, and true if they are the last."""


def _unheard(tokens: list[int], last: bool) -> None:
    """Ignore tokens: the default for a generation that is only the pattern of others."""


class RequestRefusedError(Exception):
    """The engine can never serve a request, for the reason in the message."""


class EngineFailedError(Exception):
    """A step failed; the worker cannot go on."""


class BrokenInvariantError(Exception):
    """A stateful part contradicts itself: a bug in this project."""


@dataclass(slots=True, eq=False)
class Generation:
    """One request for tokens, and its progress."""

    request_id: str
    prompt: Sequence[int]
    max_tokens: int
    on_tokens: OnTokens = _unheard
    cache_salt: str = ""
    lora_name: str = ""
    lora_path: str = ""
    """The adapter's path as the engine got it: vLLM hashes it."""
    priority: int = 0
    """Lower comes first, if the scheduler's policy is `priority`."""
    skip_reading_prefix_cache: bool = False
    kv_cache_report_mode: str = "incremental"
    """With `full`, blocks found cached are announced again (vLLM 0.26 and later)."""
    session_id: str = ""
    """The session's id, in the events of blocks that the request stores; empty: none."""
    prompt_hashes: Sequence[bytes] | None = None
    """Hashes of the prompt's full blocks, where only these and its length are known: the ids in `prompt`
    then mean nothing, and `range(n)` will do. None where the ids are known."""
    answer_hashes: Sequence[bytes] = ()
    """With `prompt_hashes`: hashes of the next full blocks, which the answer fills, as far as known."""
    num_cached_tokens: int = -1
    """Prompt tokens found cached when it was first scheduled; -1 before. The engine sets this and
    the fields below."""
    num_output_tokens: int = 0
    num_preemptions: int = 0

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt)


@dataclass(frozen=True, slots=True)
class Load:
    """An engine's figures: the first three at present, the others since its start."""

    running: int
    waiting: int
    kv_cache_usage: float
    """Share of the usable blocks that requests hold, 0 to 1."""
    prefix_cache_queries: int
    """Prompt tokens that were looked up in the cache."""
    prefix_cache_hits: int
    """Prompt tokens that were looked up and found."""
    preemptions: int


class Engine(Protocol[EventT_co]):
    """One engine, stepped from outside. `EventT_co` is the type of its cache's events."""

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""

    def submit(self, generation: Generation) -> None:
        """Take a request. Raises RequestRefusedError if it can never be served."""

    def abort(self, request_id: str) -> None:
        """Drop a request; unknown ones are ignored. The blocks that it computed stay cached."""

    def begin_step(self, horizon: float = 0.0) -> float:
        """Schedule a step; return its modelled seconds.

        For `horizon` seconds no request will be submitted or aborted. An engine may take several steps
        at once in this time if their outcome is the same as one by one.
        """

    def end_step(self) -> Sequence[EventT_co]:
        """End the step begun: hand out its tokens; return the cache's events."""

    def load(self) -> Load:
        """Return the figures that metrics show."""

    def reset_prefix_cache(self, *, reset_external: bool = False) -> bool:
        """Forget all cached content; False, and nothing done, while requests hold blocks.

        With `reset_external` the content of host memory is forgotten too, even if the GPU's could not
        be; False while host memory is being read. An engine without separate resets forgets both.
        """
