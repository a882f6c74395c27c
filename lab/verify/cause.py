"""Explains why an engine's cached tokens differ from the prediction.

Events are named as the cause only if they turn the prediction into the engine's figure. A restart,
or a trust below exact, is named for any difference. Otherwise the text says when each block in question
was cached while the request was with the engine (`lab.verify.stay`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from warmpath.indexer.engines.event import Cleared, EngineHash, Event, Removed, Stored, Tier
from warmpath.indexer.keys.key import Keyspace, chain
from warmpath.indexer.trust import Level, Trust
from warmpath.lab.verify.stay import EventKeys, Kind, Stay, follow, leading


class BlockNames:
    """The keys of the block hashes in one life of an engine, including those of lost events."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._keys: dict[EngineHash, int] = {}
        self.held: set[int] = set()
        """The keys of the blocks that the engine holds."""

    def clear(self) -> None:
        """Forget all names: the engine's next life begins."""
        self._keys.clear()
        self.held.clear()

    def learn(self, events: Iterable[Event]) -> list[EventKeys]:
        """Learn the names in a batch; return each event's kind and keys, no keys for slower tiers."""
        said: list[EventKeys] = []
        for event in events:
            kind: Kind = "stored"
            keys: frozenset[int] = frozenset()
            if isinstance(event, Cleared):
                kind = "cleared"
            elif isinstance(event, Stored) and event.tier is Tier.GPU:
                self._learn(event)
                keys = self._known(event.hashes)
            elif isinstance(event, Removed) and event.tier in {Tier.GPU, None}:
                kind, keys = "removed", self._known(event.hashes)
            said.append((kind, keys))
            follow(self.held, kind, keys)
        return said

    def _learn(self, event: Stored) -> None:
        if not event.tokens:
            return
        above = self._keys.get(event.parent) if event.parent is not None else None
        if event.parent is None:
            above = Keyspace(self._model, event.block_size, event.lora, event.cache_salt).root()
        if above is not None:
            keys = chain(above, event.tokens, event.block_size, event.extras)
            self._keys.update(zip(event.hashes, keys, strict=False))

    def _known(self, names: Iterable[EngineHash]) -> frozenset[int]:
        return frozenset(self._keys[name] for name in names if name in self._keys)


@dataclass(frozen=True, slots=True)
class Case:
    """A request whose prediction differs from its engine's report. Figures are blocks."""

    stay: Stay
    samples: int
    trust: Trust
    """The trust at the time of the prediction."""
    predicted: int
    actual: int
    before: Sequence[EventKeys]
    """The events before the request's own blocks in the batch that announced these."""
    lost: Sequence[EventKeys]
    """The events of lost batches just before the one that announced the request's own blocks."""
    after_restart: bool
    """Whether the engine had restarted, which only its next batch showed."""


def cause(case: Case) -> str:
    """Return, in words, why the prediction and the engine's report differ."""
    if case.after_restart:
        return "the engine had restarted before, which only its next batch shows"
    keys = case.stay.keys
    if found_after(keys, case.predicted, case.before) == case.actual:
        return _of_same_step(case)
    if case.samples > 1 and case.predicted < case.actual == len(keys):
        return (
            f"{case.samples} samples of one prompt: the figure is one sample's, and each "
            "finds the blocks of those before it"
        )
    if found_after(keys, case.predicted, [*case.lost, *case.before]) == case.actual:
        return "the batch before was lost on the way, which only the next one shows"
    if case.trust.level is not Level.EXACT:
        return f"the view was {case.trust.level}: {case.trust.reason}"
    return case.stay.account(case.predicted, case.actual)


def found_after(keys: Sequence[int], predicted: int, said: Iterable[EventKeys]) -> int:
    """Return how many leading blocks would be cached after some events, given the prediction.

    `keys` are those of the prompt's blocks, of which the first `predicted` are predicted to be cached.
    """
    held = set(keys[:predicted])
    for kind, changed in said:
        follow(held, kind, changed)
    return leading(keys, held)


def _of_same_step(case: Case) -> str:
    if any(kind == "cleared" for kind, _ in case.before):
        return "the cache was reset before; the engine announces a reset only with its next step"
    if case.actual < case.predicted:
        return "blocks of the prompt were evicted by the very step that scheduled the request"
    return "another request of the same step stored the blocks"


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One request for which prediction and engine differ; figures in tokens."""

    request: int
    life: int
    """The number of the engine's start, from 1: request ids begin again with each."""
    predicted: int
    on_arrival: int
    actual: int
    reason: str
    trust: str
    """The trust at the time of the prediction."""


@dataclass(slots=True)
class RecordingOutcome:
    """Sums over one recording: requests, exact predictions, errors and changes of trust."""

    requests: int = 0
    exact: int = 0
    exact_on_arrival: int = 0
    abs_error_tokens: int = 0
    skipped: int = 0
    """Requests without a reported number of cached tokens."""
    cut_after: int = 0
    """Number of the line within which the recording is cut off; 0: it is complete."""
    overclaimed: int = 0
    """Requests with fewer cached tokens than predicted, though the trust was exact."""
    trust_changes: list[dict[str, Any]] = field(default_factory=list)
    mismatches: list[Mismatch] = field(default_factory=list)
    trust: Trust = field(default_factory=lambda: Trust(Level.COLD, "no event seen", 0.0))

    @property
    def exact_ratio(self) -> float:
        """The share of requests predicted exactly; 1 without any request."""
        return self.exact / self.requests if self.requests else 1.0

    @property
    def mean_abs_error_tokens(self) -> float:
        """The mean absolute error per request, in tokens; 0 where there was none."""
        return self.abs_error_tokens / self.requests if self.requests else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the outcome as `warmpath verify --json` prints it."""
        return {
            "requests": self.requests,
            "exact": self.exact,
            "exact_ratio": self.exact_ratio,
            "exact_on_arrival": self.exact_on_arrival,
            "mean_abs_error_tokens": self.mean_abs_error_tokens,
            "skipped": self.skipped,
            "cut_after": self.cut_after,
            "mismatches": [asdict(miss) for miss in self.mismatches],
            "trust": str(self.trust.level),
            "reasons": [self.trust.reason],
            "overclaimed": self.overclaimed,
            "trust_changes": self.trust_changes,
        }
