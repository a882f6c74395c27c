"""Predicts each recorded request's cached tokens and explains differences from the engine's report."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random

from warmpath.indexer.embedded import embedded_index
from warmpath.indexer.engines import vllm
from warmpath.indexer.engines.event import Event, MalformedEventError, Stored
from warmpath.indexer.follow.instance import Engine
from warmpath.indexer.index.contract import Index
from warmpath.indexer.ranks import Ingest
from warmpath.indexer.stream.replay import AskReplay
from warmpath.indexer.trust import Level, Trust
from warmpath.lab.verify.cause import BlockNames, Case, Mismatch, RecordingOutcome, cause
from warmpath.lab.verify.recording import Frame, Life, RecordedRequest, Recording, ReplayEnd
from warmpath.lab.verify.stay import Batch, EventKeys, Stay
from warmpath.router.match.match import Scorer
from warmpath.router.prompt.token_prompt import TokenPrompt
from warmpath.scorer.match import NOTHING
from warmpath.scorer.strategies import longest_prefix

POD = "recorded"
INDEX_BYTES = 1 << 30
"""Size of the index, a router's default."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """Faults between engine and router. The engine and its replay buffer stay as recorded."""

    start_at: float = 0.0
    """The share of the recording after which the router begins to follow events."""
    replay: bool = True
    """Whether the engine answers requests for a replay."""
    drop: float = 0.0
    """The share of live batches that are lost."""
    seed: int = 0
    """Seed of the choice of lost batches."""


@dataclass(slots=True)
class _Open:
    """A request that has been sent and not answered yet."""

    asked: RecordedRequest
    on_arrival: int
    predicted: int
    trust: Trust
    lost: Sequence[EventKeys]
    """The events of batches lost since the last that arrived; only the next batch shows the loss."""
    held: frozenset[int]
    """The keys that the engine held on arrival."""
    batches: int
    """The number of batches before its arrival."""
    others: int
    """Number of other requests that were with the engine at any time beside this one."""
    after_restart: bool = False
    """Whether the engine had restarted, which only its next batch showed."""
    scheduled: bool = False
    """Whether its own blocks have been announced; then the prediction is final."""
    before: Sequence[EventKeys] = ()
    """The events before the request's own blocks in the batch that announced these."""


def verify(
    recording: Recording, conditions: Conditions | None = None, index: Index | None = None
) -> RecordingOutcome:
    """Replay a recording through the router's parts and compare each request.

    The blocks lie in `index`, or in a new compiled index.
    """
    index = index or embedded_index(INDEX_BYTES)
    return _Verification(recording, conditions or Conditions(), index).run()


class _Verification:
    """One run over one recording."""

    def __init__(self, recording: Recording, conditions: Conditions, index: Index) -> None:
        self._recording = recording
        self._conditions = conditions
        self._rng = Random(conditions.seed)
        self._following = False
        self._lost: list[EventKeys] = []
        """The events that were lost since the last batch that arrived."""
        asked = [line for line in recording.lines if isinstance(line, RecordedRequest)]
        self._model = recording.model or (asked[0].model if asked else "")
        self._adapters = set(recording.adapters)
        self._now = 0.0
        self._ingest = Ingest(
            index, hash_seed="", pending_bytes=1 << 30, stale_after=1.0, clock=lambda: self._now
        )
        engine = Engine(
            POD,
            self._model,
            "vllm",
            events="recorded",
            replay="recorded" if conditions.replay else "",
            blocks=recording.capacity,
        )
        [source] = engine.sources()
        self._rank = self._ingest.add(source)
        self._asked: list[AskReplay] = []
        self._rank.ask = self._asked.append
        self._scorer = Scorer(self._ingest, "")
        self._buffer: dict[int, bytes] = {}
        """The engine's replay buffer: batches by sequence."""
        self._connected = False
        self._life = 1
        self._open: dict[RecordedRequest, _Open] = {}
        self._names = BlockNames(self._model)
        self._batches: list[Batch] = []
        """The live batches of the engine's life."""
        self._missed: list[tuple[Mismatch, _Open, Sequence[Batch]]] = []
        """The misses, explained at the end: events may come after the answer."""
        self._outcome = RecordingOutcome(cut_after=recording.cut_after)

    def run(self) -> RecordingOutcome:
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
                for one in self._open.values():
                    one.others += 1
                self._open[line] = _Open(
                    line,
                    predicted,
                    predicted,
                    self._rank.trust,
                    tuple(self._lost),
                    frozenset(self._names.held.intersection(self._keys(line))),
                    len(self._batches),
                    len(self._open),
                )
            self._ingest.tick(1 << 16)
            self._note_trust()
        if not self._following:
            self._begin()
            self._note_trust()
        self._outcome.mismatches += [
            replace(miss, reason=cause(self._case(one, miss, batches)))
            for miss, one, batches in self._missed
        ]
        return self._outcome

    def _begin(self) -> None:
        """Begin to follow; the engine is connected if it has published before."""
        self._following = True
        if self._buffer:
            self._connect()

    def _note_trust(self) -> None:
        trust = self._rank.trust
        if trust != self._outcome.trust:
            change = {"t": self._now, "trust": str(trust.level), "reason": trust.reason}
            self._outcome.trust_changes.append(change)
            self._outcome.trust = trust

    def _timeline(self) -> Iterator[Frame | Life | ReplayEnd | RecordedRequest]:
        """Yield the lines in order, each request twice: when it was sent and when answered."""
        arrivals = sorted(
            (line for line in self._recording.lines if isinstance(line, RecordedRequest)),
            key=lambda asked: asked.arrived,
            reverse=True,
        )
        for line in self._recording.lines:
            while arrivals and (arrivals[-1].arrived < line.t or arrivals[-1] is line):
                yield arrivals.pop()
            yield line

    def _life_changed(self, action: str) -> None:
        if action == "start" and self._buffer:
            self._begin_life()
        elif action == "ready":
            self._connect()
        elif action == "stop" and self._connected:
            self._connected = False
            self._rank.disconnected()

    def _begin_life(self) -> None:
        self._life += 1
        self._buffer.clear()
        self._names.clear()
        self._batches = []
        for one in self._open.values():
            one.held, one.batches = frozenset(), 0

    def _connect(self) -> None:
        if self._following and not self._connected:
            self._connected = True
            self._rank.connected()
            self._answer_replays()

    def _frame(self, frame: Frame) -> None:
        known = self._buffer.get(frame.sequence)
        if self._buffer and known != frame.payload and frame.sequence <= max(self._buffer):
            self._begin_life()
            for one in self._open.values():
                one.after_restart |= not one.scheduled
        events: Sequence[Event] = ()
        with suppress(MalformedEventError):
            events = vllm.decode(frame.payload).events
        self._adapters.update(
            event.lora for event in events if isinstance(event, Stored) and event.lora
        )
        said = self._names.learn(events)
        self._buffer[frame.sequence] = frame.payload
        if frame.replayed or not self._following:
            return
        self._batches.append(Batch(frame.t, frame.sequence, said))
        self._connect()
        self._see_own_blocks(events, said)
        if self._rng.random() < self._conditions.drop:
            self._lost += said
        else:
            self._lost.clear()
            self._rank.live_many([(frame.topic, frame.sequence, frame.payload)])
            self._answer_replays()

    def _answer_replays(self) -> None:
        """Answer requests for replays as the engine's replay socket would."""
        while self._asked:
            asked = self._asked.pop()
            for sequence in sorted(seq for seq in self._buffer if seq >= asked.start):
                self._rank.replayed(asked.ticket, sequence, self._buffer[sequence])
            self._rank.replay_ended(asked.ticket)

    def _prompt(self, asked: RecordedRequest, ids: bytes) -> TokenPrompt:
        return TokenPrompt(
            model=self._model,
            ids=ids,
            lora=asked.model if asked.model in self._adapters else "",
            cache_salt=asked.cache_salt,
            items=asked.items,
            reads_cache=asked.reads_cache,
        )

    def _predict(self, asked: RecordedRequest) -> int:
        prompt = self._prompt(asked, asked.ids)
        matches = self._scorer.matches(prompt, [self._rank], longest_prefix)
        return matches.get(self._rank, NOTHING).matched_tokens

    def _see_own_blocks(self, events: Sequence[Event], said: Sequence[EventKeys]) -> None:
        """Settle the prediction of each request whose own blocks this batch announces."""
        for one in self._open.values():
            position = None if one.scheduled else _own_store(events, one.asked)
            if position is not None:
                one.scheduled = True
                one.predicted = self._predict(one.asked)
                one.trust = self._rank.trust
                one.lost = tuple(self._lost)
                one.before = said[:position]

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
        miss = Mismatch(
            request=one.asked.id,
            life=self._life,
            predicted=one.predicted,
            on_arrival=one.on_arrival,
            actual=actual,
            reason="",
            trust=str(one.trust.level),
        )
        self._missed.append((miss, one, self._batches))

    def _keys(self, asked: RecordedRequest) -> Sequence[int]:
        """Return the keys of the prompt's blocks that could be cached."""
        size = self._rank.layout.block_size
        return self._prompt(asked, asked.ids).chain(size, "").keys() if size else ()

    def _case(self, one: _Open, miss: Mismatch, batches: Sequence[Batch]) -> Case:
        size = self._rank.layout.block_size or 1
        return Case(
            stay=Stay(
                one.asked.arrived,
                one.asked.t,
                self._keys(one.asked),
                one.held,
                batches,
                one.batches,
                one.others,
            ),
            samples=one.asked.samples,
            trust=one.trust,
            predicted=one.predicted // size,
            actual=miss.actual // size,
            before=one.before,
            lost=one.lost,
            after_restart=one.after_restart,
        )


def _own_store(events: Sequence[Event], asked: RecordedRequest) -> int | None:
    """Return the position of the first store of only this request's tokens, None without one.

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
