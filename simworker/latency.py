"""How long a step takes.

    step = base + prefill x t + context x t x c + decode x s + decode_context x C

t uncached prompt tokens of this step at context c, s decoding sequences with C tokens between them.
The constants are those of `shared/bench/policy-study.md`, "Model and load", sized on a 70B model at
tensor parallel 4: 20 ms a step, 70 us an uncached token, 1.3 ns a token and context token; decoding
0.15 ms a sequence and 35 ns a context token.
"""

from dataclasses import dataclass, field


@dataclass(slots=True)
class StepWork:
    """What one step computes, of whichever engine."""

    prefills: list[tuple[int, int]] = field(default_factory=list)
    """(new tokens, tokens before them) of each request whose prompt is being computed."""
    decoding: int = 0
    """Sequences that get one more token."""
    decoding_context: int = 0
    """Tokens before it, of all of them together."""


@dataclass(frozen=True, slots=True)
class LatencyModel:
    """Constants of the model, seconds."""

    base: float = 0.020
    prefill: float = 70e-6
    context: float = 1.3e-9
    decode: float = 0.15e-3
    decode_context: float = 35e-9

    def step(self, work: StepWork) -> float:
        """Return a step's seconds."""
        seconds = self.base + work.decoding * self.decode
        seconds += work.decoding_context * self.decode_context
        for new, before in work.prefills:
            seconds += new * (self.prefill + self.context * (before + new / 2))
        return seconds
