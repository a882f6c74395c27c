"""The order that lets short prompts go before longer ones.

The queue releases requests in this order (docs/queue.md#who-goes-when), and engines may begin prompts
in it (`PickResponse.engine_priority`). By it a passed request is told from one whose report is lost.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Precedence:
    """By how much shorter prompts go before longer ones."""

    times: float
    """A request whose prefill is s seconds shorter goes before those that arrived up to `times` s
    earlier."""
    most_seconds: float = math.inf
    """No request goes before one that arrived more than this earlier."""

    def place(self, arrived: float, prefill: float) -> float:
        """Return a request's place in seconds, the least first; `arrived` and `prefill` are seconds."""
        return arrived + min(self.times * prefill, self.most_seconds)


FIRST_COME = Precedence(0.0)
"""First come, first served."""
USUAL = Precedence(10.0, 60.0)
"""The default."""
