"""The latency model: the seconds that a step takes.

    step = base + prefill x t + context x t x (c + t/2) + decode x s + decode_context x C

where t are the new tokens of each prompt in the step, c the tokens before them, s the number of decoding
sequences, and C the tokens that these already have, summed. The terms are the work of a transformer:

    base            read the weights once, whatever the batch; launch the kernels
    prefill         multiply a token with the weights: compute-bound
    context         attend to the tokens before: quadratic in the prompt
    decode          multiply a decoding sequence's token with the weights, and sample the next
    decode_context  read the keys and values of the tokens before: memory-bound

Prefill and decoding share steps, and so slow each other down: a decoding sequence gets its next token
when the whole step is done, chunk of a prompt included. No other interference is modelled; on a real GPU
overlapping kernels make it a little smaller. `lab/simworker/presets.py` has constants for real machines,
with their errors.

The default constants are those of the policy study (`lab.simulate.study`), sized on a 70B model at
tensor parallel 4: 20 ms a step; 70 us for an uncached token and 1.3 ns for each token before it; 0.15 ms
for a decoding sequence and 35 ns for each token before it.
"""

import math
from dataclasses import astuple, dataclass, field


@dataclass(slots=True)
class StepWork:
    """The work of one step, of any engine."""

    prefills: list[tuple[int, int]] = field(default_factory=list)
    """(new tokens, tokens before them) of each request whose prompt is being computed."""
    decoding: int = 0
    """Sequences that get one more token."""
    decoding_context: int = 0
    """Tokens that these sequences already have, summed."""


@dataclass(frozen=True, slots=True)
class LatencyModel:
    """Constants of the model: each field is the seconds that its subject adds to a step."""

    base: float = 0.020
    prefill: float = 70e-6
    context: float = 1.3e-9
    decode: float = 0.15e-3
    decode_context: float = 35e-9

    def times(self, factor: float) -> "LatencyModel":
        """Return the model of a machine that takes `factor` times as long for everything."""
        return LatencyModel(*(factor * seconds for seconds in astuple(self)))

    def step(self, work: StepWork) -> float:
        seconds = self.base + work.decoding * self.decode
        seconds += work.decoding_context * self.decode_context
        for new, before in work.prefills:
            seconds += new * (self.prefill + self.context * (before + new / 2))
        return seconds

    def decode_steps(self, work: StepWork, steps: int) -> float:
        """Return the seconds of `steps` steps of the same decoding sequences; the first step is `work`.

        Every sequence's context grows by one token a step, so the seconds of a step grow evenly.
        `work` has no prefills.
        """
        grown = work.decoding * self.decode_context * (steps * (steps - 1) // 2)
        return steps * self.step(work) + grown

    def decode_steps_until(self, work: StepWork, seconds: float, most: int) -> int:
        """Return the fewest steps (see `decode_steps`) that take `seconds` or longer, at most `most`."""
        first = self.step(work)
        if most == 1 or first >= seconds:
            return 1
        if self.decode_steps(work, most) < seconds:
            return most
        growth = work.decoding * self.decode_context
        slope = first - growth / 2
        if growth:
            steps = int((math.sqrt(slope * slope + 2 * growth * seconds) - slope) / growth)
        else:
            steps = int(seconds / slope)
        # The root may be one too large through rounding.
        steps = max(steps - 1, 1)
        while self.decode_steps(work, steps) < seconds:
            steps += 1
        return steps
