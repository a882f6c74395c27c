"""What a policy knows of a request and of the ranks that could take it.

Policies have the figures of all candidates as columns (`scorer.columns`), by the same names.
"""

from typing import NamedTuple


class Load(NamedTuple):
    """What a rank has to do already.

    Bookings of this router, corrected by what the engine's metrics and gateways said last.
    """

    wait: float = 0.0
    """Seconds until a new prefill would start: what is booked and not computed yet."""
    waiting: int = 0
    """Requests without their first token."""
    in_flight: int = 0
    """Requests that are not finished, the waiting ones among them."""
    waiting_uncached_tokens: int = 0
    """Tokens to compute of the waiting requests."""
    waiting_prompt_tokens: int = 0
    """All prompt tokens of the waiting requests."""
    context_tokens: int = 0
    """Prompt tokens of all requests in flight: what decoding has to read."""
    queue: int = 0
    """Requests in the engine's queue, as it said last."""
    kv_usage: float = 0.0
    """Share of the KV cache that requests hold, 0 to 1, as the engine said last."""
    last_pick: int = 0
    """The number of the last pick that chose it; 0 for none. Numbers grow."""


IDLE = Load()


class Candidate(NamedTuple):
    """One rank that could take the request, in names and numbers."""

    pod: str
    rank: int
    cached: int
    """Leading tokens that would probably be found cached: less than the whole prompt."""
    prefill: float
    """Seconds that computing the rest takes here, loading from slower tiers included."""
    load: Load = IDLE
    is_session: bool = False
    """Whether the session's last request went here."""
    slowness: float = 1.0
    """How many times as long prefills take here as on a typical rank of the model."""
    arriving: float = 0.0
    """Seconds that prefill would take besides but for prompts that begin alike, on their way here."""


class Request(NamedTuple):
    """What is to be placed."""

    prompt_tokens: int
    utilisation: float = 0.0
    """Share of the model's ranks that had a prefill to do lately, a moving average, 0 to 1."""
    affinity: str = ""
    """What requests of one session have in common; empty: nothing is known."""
