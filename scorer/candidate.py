"""The data that a policy has: the request, and each rank that could take it with its load.

Policies get the figures of all candidates as columns (`scorer.columns`), under the same names.
"""

from typing import NamedTuple


class Load(NamedTuple):
    """The work that a rank has already.

    It is the routers' bookings, corrected by the latest load from the engine's metrics or gateways.
    """

    wait: float = 0.0
    """Seconds until a new prefill would start: booked prefill work that is not computed yet."""
    waiting: int = 0
    """Requests without their first token."""
    in_flight: int = 0
    """Requests that are not finished, waiting ones included."""
    waiting_uncached_tokens: int = 0
    """Prompt tokens of the waiting requests that are not cached."""
    waiting_prompt_tokens: int = 0
    """All prompt tokens of the waiting requests."""
    context_tokens: int = 0
    """Prompt tokens of all requests in flight, which each decode step reads."""
    queue: int = 0
    """Requests in the engine's queue, from its latest metrics."""
    kv_usage: float = 0.0
    """Share of the KV cache that requests hold, 0 to 1, from the engine's latest metrics."""
    last_pick: int = 0
    """The number of the last pick that chose the rank (numbers grow); 0: none did."""
    foreign_wait: float = 0.0
    """The seconds of `wait` that belong to requests which no router has booked."""


IDLE = Load()


class Candidate(NamedTuple):
    """One rank that could take the request, in names and numbers."""

    pod: str
    rank: int
    cached: int
    """Leading tokens that are probably cached; always less than the whole prompt."""
    prefill: float
    """Seconds for computing the tokens not cached here, and for loads from slower tiers."""
    load: Load = IDLE
    slowness: float = 1.0
    """How many times as long prefills take here as on a typical rank of the model."""
    arriving: float = 0.0
    """Seconds of prefill saved by arriving blocks: prompts with the same beginning are on their way."""
    displaced: float = 0.0
    """Seconds of prefill of the tokens that this prompt displaces here and that are probably wanted."""
    shared: float = 0.0
    """Seconds of `prefill` in which the engine also computes requests that wait on the rank already."""

    @property
    def own(self) -> float:
        """Seconds of `prefill` by which the request delays those behind it: all but `shared`."""
        return self.prefill - self.shared


class Request(NamedTuple):
    """The request to be placed."""

    prompt_tokens: int
    utilisation: float = 0.0
    """Share of the model's ranks that had a prefill to do lately, a moving average, 0 to 1."""
    affinity: str = ""
    """The session's id; empty: none."""
    long_share: float = 0.0
    """Share of the model's latest prefills that are long (more than 3 x their mean), 0 to 1."""
    full_share: float = 0.0
    """Share of the model's ranks whose KV memory was nearly full lately, a moving average, 0
    to 1."""
