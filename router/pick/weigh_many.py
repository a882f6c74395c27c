"""Weighs very many ranks by columns (`scorer.columns`), as `router.pick.weigh` does a few by objects.

Same figures, same order, same draws; only the options that somebody asks for are made. Below `MANY`
ranks objects take no longer.
"""

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import numpy as np

from indexer.trust import Level
from router.load.table import LoadTable
from router.pick.calibration import Calibration
from router.pick.options import Field, ManyOptions, field_of
from router.pick.scorer import NOTHING, Prompt, Scorer
from router.pods.table import Pod
from scorer.candidate import Load, Request
from scorer.columns import Column, ColumnPolicy, Columns, order_of
from scorer.match import Match
from scorer.prefill import PrefillModel
from scorer.strategies.longest_prefix import longest_prefix
from scorer.warmth import Warmth, warmth

MANY = 128


class ManyWeigher:
    """Weighs by columns. `now` is the ingest's clock, seconds."""

    def __init__(
        self,
        scorer: Scorer,
        loads: LoadTable,
        calibration: Calibration,
        *,
        prefill: PrefillModel,
        assumed_seconds: float,
        rng: Random,
    ) -> None:
        self._scorer = scorer
        self._loads = loads
        self._calibration = calibration
        self._prefill = prefill
        self._assumed_seconds = assumed_seconds
        self._rng = rng
        self._field = field_of(())
        """Of the pods that were weighed last: mostly the next ones are the same."""

    def field(self, pods: Sequence[Pod]) -> Field:
        """Return the ranks of pods."""
        if self._field.of != pods:
            self._field = field_of(pods)
        return self._field

    def loaded(self, field: Field, now: float) -> "Loaded":
        """Return what the ranks have to do."""
        waits, rests = zip(*self._loads.waits(field.names, now), strict=True)
        _, waiting, in_flight, *_ = zip(*rests, strict=True)
        return Loaded(field, rests, _column(waits), _column(waiting), _column(in_flight))

    def weigh(
        self,
        prompt: Prompt,
        request: Request,
        policy: ColumnPolicy,
        loaded: "Loaded",
        *,
        session: tuple[str, int] | None,
        now: float,
    ) -> ManyOptions:
        """Return the options, best first. The session's last pick, if any, was on rank `session`."""
        field = loaded.field
        stale_since = now - self._assumed_seconds
        matches = self._scorer.matches(prompt, field.ranks, longest_prefix, stale_since=stale_since)
        tokens, prefill = request.prompt_tokens, self._prefill
        # What nobody holds is worth nothing, whatever the trust is.
        cold = warmth(NOTHING, Level.EXACT, tokens, prefill)
        number = len(field.ranks)
        cached, seconds = np.full(number, float(cold.cached)), np.full(number, cold.prefill)
        arriving = np.full(number, cold.arriving)
        # Many ranks hold the same of a prompt.
        warm_of: dict[tuple[Match, Level], Warmth] = {}
        for rank, match in matches.items():
            level = rank.trust.level
            warm = warm_of.get((match, level))
            if warm is None:
                warm = warm_of[match, level] = warmth(match, level, tokens, prefill)
            place = field.places[rank]
            cached[place], seconds[place], arriving[place] = warm
        factors, slownesses = self._calibration.all_of(
            prompt.model, field.names, request.utilisation
        )
        factor = _column(factors)
        columns = Columns(
            cached=cached,
            prefill=seconds * factor,
            slowness=_column(slownesses),
            arriving=arriving * factor,
            wait=loaded.wait,
            waiting=loaded.waiting,
            in_flight=loaded.in_flight,
            session=field.names.index(session) if session in field.names else None,
        )
        costs = policy.costs(request, columns)
        return ManyOptions(
            field,
            columns,
            costs,
            order_of(costs, columns, self._rng),
            matches=matches,
            rests=loaded.rests,
            factors=factors,
        )


class Loaded(NamedTuple):
    """What ranks have to do."""

    field: Field
    rests: Sequence[Load]
    """Their loads but for the wait."""
    wait: Column
    waiting: Column
    in_flight: Column

    @property
    def busy(self) -> float:
        """The share of them with a prefill to do."""
        return int(np.count_nonzero(self.waiting)) / len(self.rests)


def _column(figures: Sequence[float]) -> Column:
    return np.array(figures, dtype=np.float64)
