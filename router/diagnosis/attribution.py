"""Attribution: where prompt tokens of picked requests went, by pod and model.

Held anywhere, held by the pick, predicted where requests went, and delivered by engines; what shadow
picks would have saved; and the evidence that findings are made of. Counters only grow, but for pods
that are gone.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from indexer.invariant import BrokenInvariantError
from router.diagnosis.evidence import Evidence
from router.pick.pending import End, Placed
from router.pick.weigh import Choice


@dataclass(slots=True)
class Row:
    """The counters of one pod and model. Tokens."""

    pod: str
    model: str
    requests: int = 0
    prompt_tokens: int = 0
    available_tokens: int = 0
    """Held by whichever candidate held most."""
    captured_tokens: int = 0
    """Held by the pod."""
    reported_requests: int = 0
    """Those whose report says what the engine found; all but output is of these."""
    reported_prompt_tokens: int = 0
    predicted_tokens: int = 0
    delivered_tokens: int = 0
    output_tokens: int = 0
    """Of all answers whose report tells of them."""
    evidence: Evidence = field(default_factory=Evidence)


@dataclass(slots=True)
class ShadowRow:
    """Shadow mode's sums of one model: cached tokens and TTFT (s) of the callers' pods and of ours."""

    model: str
    requests: int = 0
    prompt_tokens: int = 0
    chosen_tokens: int = 0
    warmpath_tokens: int = 0
    chosen_ttft: float = 0.0
    warmpath_ttft: float = 0.0
    agreed: int = 0
    """Requests for which both chose the same pod."""


class Attribution:
    """A witness of the picker. Keeps at most `most` pairs of pod and model: the last used ones."""

    def __init__(self, most: int = 4096) -> None:
        self._most = most
        self._rows: OrderedDict[tuple[str, str], Row] = OrderedDict()
        self._shadows: dict[str, ShadowRow] = {}

    def rows(self) -> Iterable[Row]:
        """Return the counters by pod and model, to be read only."""
        return list(self._rows.values())

    def row(self, pod: str, model: str) -> Row | None:
        """Return the counters of one pod and model, to be read only; None before any request."""
        return self._rows.get((pod, model))

    def shadows(self) -> Iterable[ShadowRow]:
        """Return the shadow's totals by model, to be read only."""
        return list(self._shadows.values())

    def forget(self, pod: str) -> None:
        """Drop what is kept of a pod that is gone."""
        for name in [name for name in self._rows if name[0] == pod]:
            del self._rows[name]

    # What the picker tells

    def picked(self, placed: Placed, choice: Choice) -> None:
        """Count a pick; one in shadow counts once it is known where it went."""
        evidence = self._seen(placed, placed.picked[0]).evidence
        best = choice.options[0]
        # Of a rank without events it is known from what is believed to be there.
        size = best.rank.layout.block_size or best.match.block_size
        evidence.block_size = size or evidence.block_size
        evidence.factors[best.rank.number] = best.calibration
        if not placed.shadow:
            self._count(placed)

    def withdrawn(self, placed: Placed, choice: Choice) -> None:
        """Count nothing: no request went anywhere."""

    def started(self, placed: Placed, now: float) -> None:
        """Take note of where it went, so that reports of a pod that was never picked count too."""
        del now
        if placed.went in placed.predicted:
            self._seen(placed, placed.went[0])

    def first_token(self, placed: Placed, now: float) -> None:
        """Need nothing of a first token."""

    def told(self, placed: Placed, cached: int, prompt_tokens: int | None) -> None:
        """Compare what was predicted with what the engine found, where anything was predicted."""
        row = self._rows.get((placed.went[0], placed.model))
        if row is None or placed.went not in placed.predicted or not placed.is_placed:
            return
        predicted = placed.captured
        row.reported_requests += 1
        row.reported_prompt_tokens += placed.prompt_tokens
        row.predicted_tokens += predicted
        row.delivered_tokens += cached
        if placed.is_whole:
            row.evidence.told(
                placed.traits,
                placed.prompt_tokens,
                predicted,
                cached,
                prompt_tokens,
                believed=placed.believed,
            )

    def ended(self, placed: Placed, end: End, now: float) -> None:
        """Take note of its end; a pick in shadow that was followed counts now."""
        del now
        row = self._rows.get((placed.went[0], placed.model))
        if placed.shadow:
            if not placed.is_placed or placed.went not in placed.predicted:
                return
            self._shadowed(placed)
            if row is not None:
                self._count(placed)
        if row is not None:
            row.output_tokens += placed.output_tokens
            row.evidence.over(end)

    def _seen(self, placed: Placed, pod: str) -> Row:
        name = (pod, placed.model)
        row = self._rows.get(name)
        if row is None:
            if len(self._rows) >= self._most:
                self._rows.popitem(last=False)
            row = self._rows[name] = Row(*name)
        else:
            self._rows.move_to_end(name)
        return row

    def _count(self, placed: Placed) -> None:
        row = self._rows[placed.went[0], placed.model]
        row.requests += 1
        row.prompt_tokens += placed.prompt_tokens
        row.available_tokens += placed.available
        row.captured_tokens += placed.captured

    def _shadowed(self, placed: Placed) -> None:
        # Models are configured: there are no more of these than there.
        row = self._shadows.setdefault(placed.model, ShadowRow(placed.model))
        chosen, ours = placed.predicted[placed.went], placed.predicted[placed.picked]
        row.requests += 1
        row.prompt_tokens += placed.prompt_tokens
        row.chosen_tokens += chosen.held
        row.warmpath_tokens += ours.held
        row.chosen_ttft += chosen.wait + chosen.prefill
        row.warmpath_ttft += ours.wait + ours.prefill
        row.agreed += placed.went[0] == placed.picked[0]

    def check(self) -> None:
        """Raise BrokenInvariantError where counters contradict one another or too much is kept."""
        if len(self._rows) > self._most:
            raise BrokenInvariantError(f"{len(self._rows)} rows; at most {self._most}")
        for name, row in self._rows.items():
            if name != (row.pod, row.model):
                raise BrokenInvariantError(f"{name} has the row of {row.pod}, {row.model}")
            if not row.captured_tokens <= row.available_tokens <= row.prompt_tokens:
                raise BrokenInvariantError(f"{name}: more was captured than there was")
            if row.predicted_tokens > row.reported_prompt_tokens:
                raise BrokenInvariantError(f"{name}: more was predicted than asked for")
            row.evidence.check()
        for shadow in self._shadows.values():
            if max(shadow.chosen_tokens, shadow.warmpath_tokens) > shadow.prompt_tokens:
                raise BrokenInvariantError(f"{shadow.model}: more was held than asked for")
