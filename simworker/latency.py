"""How long a step takes.

    step = base + prefill x t + context x t x c + decode x s + decode_context x C

t uncached prompt tokens of this step at context c, s decoding sequences with C tokens between them.
The constants are those of `shared/bench/policy-study.md`, "Model and load", sized on a 70B model at
tensor parallel 4: 20 ms a step, 70 us an uncached token, 1.3 ns a token and context token; decoding
0.15 ms a sequence and 35 ns a context token.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LatencyModel:
    """Constants of the model, seconds."""

    base: float = 0.020
    prefill: float = 70e-6
    context: float = 1.3e-9
    decode: float = 0.15e-3
    decode_context: float = 35e-9

    def step(self, prefills: list[tuple[int, int]], decoding: int, decoding_context: int) -> float:
        """Return a step's seconds.

        `prefills` are (new tokens, tokens before them) of each request that is being prefilled.
        """
        seconds = self.base + decoding * self.decode + decoding_context * self.decode_context
        for new, before in prefills:
            seconds += new * (self.prefill + self.context * (before + new / 2))
        return seconds
