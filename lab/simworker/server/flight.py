"""A flight: one request on its way through a rank, its tokens so far, and the sink that takes them.

An engine knows only the generation that it computes now. A flight outlives it: when a rank takes its
requests back, because the cache is reset or the engine sleeps, each goes on later as a new generation
whose prompt includes the tokens generated so far, as a preempted request is recomputed.
"""

from collections.abc import Callable
from dataclasses import replace

from warmpath.lab.simworker.engine import Generation, OnTokens

Sink = Callable[[list[int], str | None], None]
"""Takes new tokens, and the reason if they are the last: "length", "abort" or "error", else None."""


class Flight:
    """A request under way: `ask` is a generation for its whole answer, which itself never runs.

    Times are seconds of the rank's clock.
    """

    __slots__ = (
        "_begun", "arrived", "ask", "cached_tokens", "error", "first_token_at", "generation",
        "rank", "request_id", "sink", "tokens",
    )  # fmt: skip

    def __init__(self, request_id: str, ask: Generation, sink: Sink) -> None:
        self.request_id = request_id
        self.ask = ask
        self.sink = sink
        self.rank = 0
        """The data-parallel rank that computes it."""
        self.tokens: list[int] = []
        self.error = ""
        """The reason, if it ended with "error"."""
        self.cached_tokens = -1
        """Prompt tokens found cached when it was first scheduled; -1 before."""
        self.arrived = 0.0
        self.first_token_at: float | None = None
        self._begun = 0
        self.generation: Generation | None = None
        """The generation that the engine computes now; None before the first."""

    def begin(self, on_tokens: OnTokens) -> Generation:
        """Return a generation for the engine: of the whole answer, or of the rest."""
        ask = self.ask
        # Each generation has an id of its own: a step under way may still hold the one before.
        again = f"-again-{self._begun}" if self._begun else ""
        self._begun += 1
        self.generation = replace(
            ask,
            request_id=self.request_id + again,
            prompt=[*ask.prompt, *self.tokens] if self.tokens else ask.prompt,
            max_tokens=ask.max_tokens - len(self.tokens),
            on_tokens=on_tokens,
        )
        return self.generation

    def take(self, tokens: list[int]) -> None:
        self.tokens += tokens
        if self.cached_tokens < 0 and self.generation is not None:
            self.cached_tokens = self.generation.num_cached_tokens
