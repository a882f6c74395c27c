"""Predict each recorded request's cached tokens, and explain where the engine did otherwise."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Any

from indexer.engines import vllm
from indexer.engines.event import Batch, Cleared, MalformedEventError, Removed, Stored
from indexer.index import Index
from indexer.ingest import Ingest
from indexer.memory import MemoryIndex
from indexer.rank_ingest import RankIngest
from indexer.rank_source import RankSource
from indexer.stream import AskReplay
from indexer.trust import Level, Trust
from router.recording import Asked, Frame, Life, Recording, ReplayEnd
from router.score import Scorer
from router.token_prompt import TokenPrompt
from scorer.longest_prefix import longest_prefix

POD = "recorded"


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One request for which prediction and engine differ; figures in tokens."""

    request: int
    life: int
    """Counts the engine's starts, from 1: request ids begin anew with each."""
    predicted: int
    on_arrival: int
    actual: int
    reason: str
    trust: str
    """How far the view was said to be believed when the prediction was made."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """What the follower is put through. The engine and its replay buffer are as recorded."""

    start_at: float = 0.0
    """The share of the recording that has passed when it begins to follow."""
    replay: bool = True
    """Whether the engine answers replays."""
    drop: float = 0.0
    """The share of live batches that is lost on the way."""
    seed: int = 0
    """Says which ones."""


@dataclass(slots=True)
class Outcome:
    """What a whole recording came to."""

    requests: int = 0
    exact: int = 0
    exact_on_arrival: int = 0
    abs_error_tokens: int = 0
    skipped: int = 0
    cut_after: int = 0
    """The line in whose middle the recording ends; 0: it is whole."""
    overclaimed: int = 0
    """Requests predicted warmer than they were while the trust said exact."""
    trust_changes: list[dict[str, Any]] = field(default_factory=list)
    mismatches: list[Mismatch] = field(default_factory=list)
    trust: Trust = field(default_factory=lambda: Trust(Level.COLD, "no event seen", 0.0))

    @property
    def exact_ratio(self) -> float:
        """The share of requests predicted exactly; 1 where there was none."""
        return self.exact / self.requests if self.requests else 1.0

    @property
    def mean_abs_error_tokens(self) -> float:
        """The mean absolute error a request, in tokens."""
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


@dataclass(slots=True)
class _Open:
    """A request that has been sent and not been answered yet."""

    asked: Asked
    on_arrival: int
    predicted: int
    trust: Trust
    after_loss: bool
    """Whether the batch before was lost, which only the next one can show."""
    after_restart: bool = False
    """Whether the engine had restarted, which only its next batch showed."""
    scheduled: bool = False
    """Whether its own blocks have been announced; then the prediction is final."""
    otherwise: str = ""
    """What the batch that announced them says about the time between."""


def verify(recording: Recording, conditions: Conditions | None = None) -> Outcome:
    """Replay a recording through the real pipeline and compare each request."""
    return _Verification(recording, conditions or Conditions()).run()


class _Verification:
    """One run over one recording."""

    def __init__(self, recording: Recording, conditions: Conditions) -> None:
        self._recording = recording
        self._conditions = conditions
        self._rng = Random(conditions.seed)  # noqa: S311  repeatable, guards nothing
        self._following = False
        self._lost_last = False
        asked = [line for line in recording.lines if isinstance(line, Asked)]
        self._model = recording.model or (asked[0].model if asked else "")
        self._adapters = set(recording.adapters)
        self._now = 0.0
        index: Index = MemoryIndex()
        self._ingest = Ingest(
            index, hash_seed="", pending_bytes=1 << 30, stale_after=1.0, clock=lambda: self._now
        )
        self._rank: RankIngest = self._ingest.add(
            RankSource(
                POD,
                0,
                self._model,
                self._decode,
                has_replay=conditions.replay,
                capacity=recording.capacity,
            )
        )
        self._scorer = Scorer(self._ingest, "")
        self._buffer: dict[int, bytes] = {}
        """The batches that the engine's replay would bring, by sequence."""
        self._connected = False
        self._life = 1
        self._open: dict[Asked, _Open] = {}
        self._outcome = Outcome(cut_after=recording.cut_after)

    def run(self) -> Outcome:
        lines = list(self._timeline())
        begins = self._conditions.start_at * len(lines)
        for number, line in enumerate(lines):
            if not self._following and number >= begins:
                self._begin()
            if isinstance(line, Frame):
                self._now = line.t
                self._frame(line)
            elif isinstance(line, Life):
                self._now = line.t
                self._life_changed(line.action)
            elif isinstance(line, ReplayEnd):
                self._now = line.t
                self._connect()
            elif line in self._open:
                self._now = line.t
                self._answered(self._open.pop(line))
            elif self._following and line.t > self._now:
                self._now = line.arrived
                predicted = self._predict(line)
                self._open[line] = _Open(
                    line, predicted, predicted, self._rank.trust, self._lost_last
                )
            self._ingest.tick(1 << 16)
            self._note_trust()
        if not self._following:
            self._begin()
            self._note_trust()
        return self._outcome

    def _begin(self) -> None:
        """Begin to follow; where the engine has published before, it is up."""
        self._following = True
        if self._buffer:
            self._connect()

    def _note_trust(self) -> None:
        trust = self._rank.trust
        if trust != self._outcome.trust:
            change = {"t": self._now, "trust": str(trust.level), "reason": trust.reason}
            self._outcome.trust_changes.append(change)
            self._outcome.trust = trust

    def _timeline(self) -> Iterator[Frame | Life | ReplayEnd | Asked]:
        """Yield the lines in order, each request twice: when it was sent and when answered."""
        arrivals = sorted(
            (line for line in self._recording.lines if isinstance(line, Asked)),
            key=lambda asked: asked.arrived,
            reverse=True,
        )
        for line in self._recording.lines:
            while arrivals and (arrivals[-1].arrived < line.t or arrivals[-1] is line):
                yield arrivals.pop()
            yield line

    def _decode(self, payload: bytes) -> Batch:
        batch = vllm.decode(payload)
        for event in batch.events:
            if isinstance(event, Stored) and event.lora:
                self._adapters.add(event.lora)
        return batch

    def _life_changed(self, action: str) -> None:
        if action == "start":
            self._life += bool(self._buffer)
            self._buffer.clear()
        elif action == "ready":
            self._connect()
        elif action == "stop" and self._connected:
            self._connected = False
            self._rank.disconnected()

    def _connect(self) -> None:
        if self._following and not self._connected:
            self._connected = True
            self._replay(self._rank.connected())

    def _frame(self, frame: Frame) -> None:
        known = self._buffer.get(frame.sequence)
        if self._buffer and known != frame.payload and frame.sequence <= max(self._buffer):
            self._life += 1
            self._buffer.clear()
            for one in self._open.values():
                one.after_restart |= not one.scheduled
        self._buffer[frame.sequence] = frame.payload
        if frame.replayed or not self._following:
            return
        self._connect()
        self._see_own_blocks(frame.payload)
        self._lost_last = self._rng.random() < self._conditions.drop
        if not self._lost_last:
            self._replay(self._rank.live(frame.topic, frame.sequence, frame.payload))

    def _replay(self, asked: AskReplay | None) -> None:
        """Answer as the engine's replay socket would."""
        while asked is not None:
            answer = sorted(seq for seq in self._buffer if seq >= asked.start)
            again = None
            for sequence in answer:
                again = self._rank.replayed(asked.ticket, sequence, self._buffer[sequence])
                if again is not None:
                    break
            asked = again or self._rank.replay_ended(asked.ticket)

    def _prompt(self, asked: Asked, ids: bytes) -> TokenPrompt:
        return TokenPrompt(
            model=self._model,
            ids=ids,
            lora=asked.model if asked.model in self._adapters else "",
            cache_salt=asked.cache_salt,
            items=asked.items,
            reads_cache=asked.reads_cache,
        )

    def _predict(self, asked: Asked) -> int:
        prompt = self._prompt(asked, asked.ids)
        [score] = self._scorer.score(prompt, [self._rank], longest_prefix)
        return score.matched_tokens

    def _see_own_blocks(self, payload: bytes) -> None:
        """Settle the prediction of each request whose own blocks this batch announces."""
        waiting = [one for one in self._open.values() if not one.scheduled]
        size = self._rank.layout.block_size
        if not waiting:
            return
        try:
            events = vllm.decode(payload).events
        except MalformedEventError:
            return
        for one in waiting:
            position = _own_store(events, one.asked)
            if position is not None:
                one.scheduled = True
                one.predicted = self._predict(one.asked)
                one.trust = self._rank.trust
                one.after_loss = self._lost_last
                one.otherwise = _between(events[:position], one.predicted, size)

    def _answered(self, one: _Open) -> None:
        outcome, actual = self._outcome, one.asked.cached
        if actual is None:
            outcome.skipped += 1
            return
        outcome.requests += 1
        outcome.exact_on_arrival += one.on_arrival == actual
        outcome.abs_error_tokens += abs(one.predicted - actual)
        if one.predicted == actual:
            outcome.exact += 1
            return
        exact = one.trust.level is Level.EXACT
        outcome.overclaimed += exact and one.predicted > actual
        outcome.mismatches.append(
            Mismatch(
                request=one.asked.id,
                life=self._life,
                predicted=one.predicted,
                on_arrival=one.on_arrival,
                actual=actual,
                reason=self._explain(one, actual),
                trust=str(one.trust.level),
            )
        )

    def _explain(self, one: _Open, actual: int) -> str:
        if one.after_restart:
            return "the engine had restarted before, which only its next batch shows"
        if one.after_loss:
            return "the batch before was lost on the way, which only the next one shows"
        if one.trust.level is not Level.EXACT:
            return f"the view was {one.trust.level}: {one.trust.reason}"
        if one.asked.samples > 1:
            return (
                f"{one.asked.samples} samples of one prompt: the figure is one sample's, and each "
                "finds the blocks of those before it"
            )
        if one.otherwise:
            return one.otherwise
        if actual > one.predicted:
            return "the engine found blocks that were stored while the request waited in its queue"
        return "blocks went while the request waited in the engine's queue"


def _own_store(events: tuple[Any, ...], asked: Asked) -> int | None:
    """Return the position of the first store that has nothing but this request's tokens.

    Prompt and answer are one sequence. A store that begins with the request's tokens and goes on
    with others is another request's with the same beginning.
    """
    whole = asked.ids + asked.answer
    for position, event in enumerate(events):
        if not isinstance(event, Stored) or not event.tokens:
            continue
        at = whole.find(event.tokens)
        while at >= 0 and at % (4 * event.block_size):
            at = whole.find(event.tokens, at + 1)
        if at >= 0 and (at == 0) == (event.parent is None):
            return position
    return None


def _between(events: tuple[Any, ...], predicted: int, block_size: int) -> str:
    """Say what came before the request's own store in the same batch that no one could know."""
    if any(isinstance(event, Cleared) for event in events):
        return "the cache was reset before; the engine announces a reset only with its next step"
    if any(isinstance(event, Removed) for event in events) and predicted >= block_size > 0:
        return "blocks were evicted by the very step that scheduled the request"
    if any(isinstance(event, Stored) for event in events):
        return "another request of the same step stored the blocks"
    return ""
