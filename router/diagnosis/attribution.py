"""Attribution: counters of the prompt tokens of picked requests, by pod and model.

It counts tokens that the warmest candidate held, that the picked pod held, that were predicted to be
cached, and that engines found cached; the savings of shadow picks; and the evidence for findings. All
but the evidence only grow; its counts fade exponentially, so that a mended fault disappears and a new
one shows soon. The row of a removed pod is dropped; of too many, the least recently used.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields

from warmpath.router.diagnosis.clients import Client, Clients, TokenCounts
from warmpath.router.diagnosis.shadow import ShadowComparison
from warmpath.router.pick.pick import End, Pick, Witness
from warmpath.router.pick.weigh import Choice, Traits
from warmpath.scorer.prefill import PrefillModel

FADING = 0.98
"""Each report multiplies the weights of earlier ones by this. After 34 reports half a weight is
left; the weights of infinitely many reports sum to 50 (`FULL`)."""

TOLERANCE_TOKENS = 64
TOLERANCE_SHARE = 0.05
"""A prediction is right within a block, TOLERANCE_TOKENS or this share of the prompt, whichever is
largest: other requests between the pick and the prefill change the cache by about as much."""

MOST_HITS = 64
"""Number of cached token counts that are kept; few could have a common divisor by accident."""

FULL = 1.0 / (1.0 - FADING)
"""The faded count of infinitely many reports."""


@dataclass(slots=True)
class ReportCounts:
    """Counts of the reports of requests with equal traits. All but `reports` are faded."""

    reports: int = 0
    right: float = 0.0
    over: float = 0.0
    """Reports with fewer cached tokens than predicted."""
    under: float = 0.0
    """Reports with more cached tokens than predicted."""
    void: float = 0.0
    """Reports in `over` with no cached tokens at all."""
    blind: float = 0.0
    """Reports in `under` for which no cached tokens were predicted."""
    counted: float = 0.0
    """Reports with the engine's own count of the prompt's tokens."""
    miscounted: float = 0.0
    """Reports in `counted` whose count differs from the router's."""
    tokens: float = 0.0
    predicted: float = 0.0
    believed: float = 0.0
    """Tokens in `predicted` that were only believed: no event had announced them."""
    delivered: float = 0.0
    """Tokens that the engine found cached."""

    @property
    def weight(self) -> float:
        """The faded count of all reports."""
        return self.right + self.over + self.under

    @property
    def off_share(self) -> float:
        """The share of wrong predictions, 0 to 1; 0 without any report."""
        return (self.over + self.under) / self.weight if self.weight else 0.0

    @property
    def gap(self) -> float:
        """Predicted minus delivered tokens, as a share of the larger; -1 to 1."""
        most = max(self.predicted, self.delivered)
        return (self.predicted - self.delivered) / most if most else 0.0

    def share(self, count: float) -> float:
        """Return a faded count as a share of all reports."""
        return count / self.weight if self.weight else 0.0

    @property
    def miscounted_share(self) -> float:
        """The share of engines' token counts that differ from the router's; 0 without any count."""
        return self.miscounted / self.counted if self.counted else 0.0

    def fade(self) -> None:
        self.right *= FADING
        self.over *= FADING
        self.under *= FADING
        self.void *= FADING
        self.blind *= FADING
        self.counted *= FADING
        self.miscounted *= FADING
        self.tokens *= FADING
        self.predicted *= FADING
        self.believed *= FADING
        self.delivered *= FADING


COUNTS = tuple(one.name for one in fields(ReportCounts))


class Evidence:
    """The counts of one pod's requests for one model, from which findings are made; of bounded size."""

    def __init__(self) -> None:
        self.tallies: dict[Traits, ReportCounts] = {}
        self.hits: deque[int] = deque(maxlen=MOST_HITS)
        """The last nonzero counts of cached tokens, mostly multiples of the block size."""
        self.block_size = 0
        """Tokens per block, from events or else from beliefs; 0: not known yet."""
        self.factors: dict[int, float] = {}
        """The calibration factor of each rank at its last pick."""
        self.ends = 0
        """Number of requests that have ended."""
        self.ended = 0.0
        """The faded count of requests that have ended."""
        self.expired = 0.0
        """Requests in `ended` that were never reported as finished or failed."""

    @classmethod
    def joined(cls, of_pods: Iterable["Evidence"]) -> "Evidence":
        """Return the tallies of several pods as one evidence."""
        joined = cls()
        for one in of_pods:
            for traits, tally in one.tallies.items():
                both = (joined.tallies.get(traits, ReportCounts()), tally)
                summed = (sum(getattr(each, name) for each in both) for name in COUNTS)
                joined.tallies[traits] = ReportCounts(*summed)
        return joined

    def found_cached(
        self,
        traits: Traits,
        tokens: int,
        predicted: int,
        cached: int,
        counted: int | None,
        *,
        believed: int = 0,
    ) -> None:
        """Count a report: the engine found `cached` of a prompt's `tokens`.

        `counted` is the engine's own count of the prompt's tokens; `believed` of the `predicted`
        tokens were only believed: no event had announced them.
        """
        tally = self.tallies.get(traits)
        if tally is None:
            tally = self.tallies[traits] = ReportCounts()
        tally.fade()
        tally.reports += 1
        # With another tokenizer the router's own count may be a fraction of the engine's.
        tally.tokens += max(counted or tokens, predicted, cached)
        tally.predicted += predicted
        tally.believed += believed
        tally.delivered += cached
        tolerance = max(self.block_size, TOLERANCE_TOKENS, TOLERANCE_SHARE * tokens)
        if predicted > cached + tolerance:
            tally.over += 1
            tally.void += not cached
        elif cached > predicted + tolerance:
            tally.under += 1
            tally.blind += not predicted
        else:
            tally.right += 1
        if counted is not None:
            tally.counted += 1
            tally.miscounted += counted != tokens
        if cached:
            self.hits.append(cached)

    def over(self, end: End) -> None:
        self.ends += 1
        self.ended = self.ended * FADING + 1
        self.expired = self.expired * FADING + (end == "expired")

    def of(self, wanted: Callable[[Traits], bool]) -> ReportCounts:
        """Return the summed counts of all traits that `wanted` accepts."""
        counted = [tally for traits, tally in self.tallies.items() if wanted(traits)]
        return ReportCounts(*(sum(getattr(one, name) for one in counted) for name in COUNTS))


@dataclass(slots=True)
class Row(TokenCounts):
    """The counters of one pod and model: the fields of the contract's `Attribution`, and evidence."""

    pod: str
    model: str
    output_tokens: int = 0
    evidence: Evidence = field(default_factory=Evidence)


class Attribution(Witness):
    """Counts picks and their reports, for the `most` last used pairs of pod and model.

    `prefill` predicts the time that cached tokens save.
    """

    def __init__(self, most: int = 4096, prefill: PrefillModel = PrefillModel()) -> None:  # noqa: B008  frozen
        self._most = most
        self._prefill = prefill
        self.total = Row("", "")
        """The counters of all pods and models, removed ones included; its evidence is not used."""
        self._rows: OrderedDict[tuple[str, str], Row] = OrderedDict()
        self.shadow = ShadowComparison()
        self.clients = Clients()

    def rows(self) -> Iterable[Row]:
        return list(self._rows.values())

    def row(self, pod: str, model: str) -> Row | None:
        """Return the counters of one pod and model, None if there are none; read only."""
        return self._rows.get((pod, model))

    def forget(self, pod: str) -> None:
        for name in [name for name in self._rows if name[0] == pod]:
            del self._rows[name]
        self.shadow.forget(pod)

    def picked(self, placed: Pick, choice: Choice) -> None:
        """Count a pick; a shadow pick is counted at its end, when the pod that served it is known."""
        evidence = self._seen(placed, placed.picked[0]).evidence
        options, place = choice.options, choice.options.order[0]
        # A rank without events has the block size of its beliefs.
        size = options.field.ranks[place].layout.block_size or options.match(place).block_size
        evidence.block_size = size or evidence.block_size
        evidence.factors[placed.picked.number] = options.factor
        client = self.clients.picked(placed, choice)
        if not placed.shadow:
            self._count(placed, client)

    def started(self, placed: Pick) -> None:
        """Add a row for the pod that serves the request, which may differ from the picked one."""
        if placed.is_predicted:
            self._seen(placed, placed.went[0])

    def found_cached(self, placed: Pick, cached: int, prompt_tokens: int | None) -> None:
        row = self._rows.get((placed.went[0], placed.model))
        is_predicted = placed.is_predicted and placed.prompt_tokens
        if row is None or not is_predicted or not placed.is_placed:
            return
        predicted = placed.expected.held
        # A prompt that was not tokenised is estimated by its length, and may have several times as many.
        tokens = max(prompt_tokens or placed.prompt_tokens, predicted, cached)
        for counted in (row, self.total, self.clients.of(placed)):
            counted.reported_requests += 1
            counted.reported_prompt_tokens += tokens
            counted.predicted_tokens += predicted
            counted.delivered_tokens += cached
        if placed.is_whole:
            row.evidence.found_cached(
                placed.traits, placed.prompt_tokens, predicted, cached, prompt_tokens,
                believed=placed.expected.believed,
            )  # fmt: skip

    def ended(self, placed: Pick, end: End, now: float) -> None:
        del now
        row = self._rows.get((placed.went[0], placed.model))
        if placed.shadow:
            if not placed.is_placed or not placed.is_predicted:
                return
            self.shadow.add(placed)
            if row is not None:
                self._count(placed, self.clients.of(placed))
        if row is not None:
            row.output_tokens += placed.output_tokens
            self.total.output_tokens += placed.output_tokens
            if end != "cancelled":
                row.evidence.over(end)

    def _seen(self, placed: Pick, pod: str) -> Row:
        name = (pod, placed.model)
        row = self._rows.get(name)
        if row is None:
            if len(self._rows) >= self._most:
                self._rows.popitem(last=False)
            row = self._rows[name] = Row(*name)
        else:
            self._rows.move_to_end(name)
        return row

    def _count(self, placed: Pick, client: Client) -> None:
        client.saved_seconds += self._prefill.saved(placed.expected.held)
        for row in (self._rows[placed.went[0], placed.model], self.total, client):
            row.requests += 1
            row.prompt_tokens += placed.prompt_tokens
            row.available_tokens += placed.available
            row.captured_tokens += placed.expected.held
            row.average_tokens += placed.average
