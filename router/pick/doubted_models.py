"""Notices failed requests whose pod may no longer serve the adapter that they named."""

import math
from collections.abc import Callable

from warmpath.router.pick.pick import End, Pick, Witness

PAUSE_SECONDS = 0.1
"""Least time between two doubts of a model: a doubt takes a walk over all its pods."""


class DoubtedModels(Witness):
    """A witness of picks: calls `doubt` with the model whose pods' adapters may have changed.

    An engine answers 404 for an adapter that was unloaded, and a gateway reports that as any failure.
    The model is empty where no pod lists the name of the request: any pod may have loaded it.
    """

    def __init__(self, doubt: Callable[[str], None]) -> None:
        self._doubt = doubt
        self._doubted_at: dict[str, float] = {}
        """When each model was doubted last."""

    def ended(self, placed: Pick, end: End, now: float) -> None:
        """Doubt the models that pods list, if a request failed that named no base model."""
        if end != "failed" or (placed.model and not placed.traits.has_adapter):
            return
        if now - self._doubted_at.get(placed.model, -math.inf) >= PAUSE_SECONDS:
            self._doubted_at[placed.model] = now
            self._doubt(placed.model)
