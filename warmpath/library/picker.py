"""Chooses a pod for each request by what it costs there, and follows the request by reports."""

import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

import msgspec

from warmpath.client.calls import AnyPrompt, PodLoad, check_arguments
from warmpath.indexer.believed import Believed
from warmpath.indexer.embedded import embedded_index
from warmpath.indexer.trust import Trust
from warmpath.library.index import Index
from warmpath.library.pod_score import Scorer, Tokenizer
from warmpath.proto.report_event import ReportEvent
from warmpath.router.config import schema as config
from warmpath.router.load.engine_metrics import Observed
from warmpath.router.match.match import Scorer as Matcher
from warmpath.router.peers import booking_id as booking_ids
from warmpath.router.pick.eligible import Eligible, Wanted
from warmpath.router.pick.options import MOST_CANDIDATES, Option
from warmpath.router.pick.picking import Picking, believed_bytes
from warmpath.router.pick.report import Report, carry_out, check_event
from warmpath.router.pick.weigh import Ask, Choice, Traits
from warmpath.router.pods.namespaces import asked
from warmpath.router.pods.table import Pod
from warmpath.router.prompt.limits import BadRequestError

Table = TypeVar("Table", config.PickTable, config.BookingTable)

MOST_SESSION_CHARS = 256


@dataclass(frozen=True, slots=True)
class Candidate:
    """A rank that could take a request."""

    pod: str
    rank: int
    address: str
    """The address that `Index.add` was given."""
    matched_tokens: int
    """Leading tokens that it holds, known or believed."""
    believed_tokens: int
    """The part of `matched_tokens` that no event has announced."""
    outstanding_tokens: int
    """Tokens that the rank has yet to compute for requests booked on it before."""
    cost: float
    """The figure that the policy compares, lower is better; seconds for the default policy."""
    predicted_ttft: float
    """Seconds until the first token: the wait and the prefill."""
    trust: Trust
    ready: bool
    """False if the pod's events have ended; such pods are candidates only where there are no others."""


@dataclass(frozen=True, slots=True)
class Source:
    """A rank that holds more of the prompt than the picked one, for engines that can pull KV from it."""

    pod: str
    rank: int
    address: str
    matched_tokens: int


@dataclass(frozen=True, slots=True)
class Picked:
    """A pick; `prompt_tokens` are all of the prompt's, `source` is None if no rank holds more."""

    booking_id: str
    """The name of the pick in reports."""
    candidates: Sequence[Candidate]
    """The pick, then fall-backs, best first; at most 8."""
    decode: Sequence[Candidate]
    """For a disaggregated pick: the ranks for decoding, best first, at most 8."""
    prompt_tokens: int
    source: Source | None
    choice: Choice = field(repr=False)

    @property
    def pod(self) -> str:
        return self.candidates[0].pod

    @property
    def rank(self) -> int:
        return self.candidates[0].rank

    @property
    def reason(self) -> str:
        """Why the pod was picked, in a sentence."""
        return str(self.choice.reason)


class Picker:
    """Picks among an index's pods. Thread-safe; threads that use one picker take turns.

    `pick` and `booking` are the tables [pick] and [booking] of the router's file; the keys of [pick] for
    decisions and the queue are not used. `shared_tiers` and `tokenizer` are as for a `Scorer`. `rng`
    breaks ties; `new_id` names the picks that their callers do not name.

    >>> index = Index("demo")
    >>> index.feed("pod-1", [Stored.of([11, 12], range(32), block_size=16)])
    >>> index.feed("pod-2", [])
    >>> picker = Picker(index)
    >>> picked = picker.pick(range(40))
    >>> picked.pod, picked.candidates[0].matched_tokens
    ('pod-1', 32)
    >>> picker.report(picked.booking_id, "first_token")
    True
    >>> picker.report(picked.booking_id, "finished", cached_tokens=32)
    True
    """

    def __init__(
        self,
        index: Index,
        *,
        pick: config.PickTable | None = None,
        booking: config.BookingTable | None = None,
        shared_tiers: Collection[str] = (),
        tokenizer: Tokenizer | None = None,
        rng: Random | None = None,
        new_id: Callable[[], str] = lambda: secrets.token_hex(16),
    ) -> None:
        """Begin. Raises ValueError for an impossible value, and for an unknown policy or option."""
        pick = _valid("pick", pick or config.PickTable())
        self._index = index

        def matcher(*, believed: Believed, elsewhere: None) -> Matcher:
            del elsewhere
            self.scorer = Scorer(
                index, shared_tiers=shared_tiers, tokenizer=tokenizer, believed=believed
            )
            """Scores prompts by the longest prefix, with the blocks that picks have put on their way."""
            return self.scorer.matcher

        self._picking = Picking(
            pick,
            _valid("booking", booking or config.BookingTable()),
            config.QueueTable(),
            index=embedded_index(believed_bytes(pick)),
            scorer=matcher,
            new_id=new_id,
            rng=rng or Random(secrets.randbits(64)),  # noqa: S311  breaks ties, guards nothing
        )
        self._lock = self.scorer.lock
        self._eligible = Eligible(index.table)
        self._picker = self._picking.picker
        self._pods: dict[str, Pod] = {}
        """The pods at the last call."""
        self._changes = 0
        """`Index.changes` at the last call."""

    def pick(
        self,
        prompt: AnyPrompt,
        *,
        pods: Sequence[str] = (),
        policy: str = "",
        session: str = "",
        loads: Sequence[PodLoad] = (),
        shadow: bool = False,
        disaggregated: bool = False,
        booking_id: str = "",
    ) -> Picked:
        """Pick a pod for a request, among `pods` unless that is empty, and book the work there.

        The arguments are the fields of the contract's PickRequest (`session` is `session_id`). Raises
        NoPodError where no pod can take the request, and ValueError, which names the field at fault.
        """
        check_arguments(pods=pods, policy=policy, session=session, booking_id=booking_id)
        _check_name(booking_id)
        if booking_ids.router_of(booking_id):
            raise ValueError("booking_id: has the form of a router's own booking ids")
        if len(session) > MOST_SESSION_CHARS:
            raise ValueError(f"session: is longer than {MOST_SESSION_CHARS} characters")
        read = self.scorer.reader.read(prompt)
        self._index.pass_time()
        table, model = self._index.table, self._index.model
        with self._lock:
            now = self._forget_removed()
            self._observe(loads, now)
            ids = set(pods)
            named = [pod for pod in table.of_model(model) if not ids or pod.id in ids]
            placed = read.apart(pod.engine for pod in named)
            asked(placed, named)
            wanted = Wanted(model, placed.lora, tuple(ids), disaggregated)
            ask = Ask(
                placed,
                self._eligible(wanted),
                wanted,
                policy=policy,
                session=session,
                shadow=shadow,
                booking_id=booking_id,
                traits=Traits(
                    read.form, bool(placed.lora), bool(placed.cache_salt), bool(placed.items)
                ),
            )
            return _picked_of(*self._picker.choose(ask, now))

    def report(
        self,
        booking_id: str,
        event: ReportEvent,
        *,
        cached_tokens: int | None = None,
        prompt_tokens: int | None = None,
        output_tokens: int = 0,
        pod: str = "",
        rank: int = 0,
        loads: Sequence[PodLoad] = (),
    ) -> bool:
        """Report an event of a picked request: started, first_token, finished or failed.

        The arguments are the fields of the contract's ReportRequest. Returns False for a booking that
        is unknown, over or expired. Raises ValueError for a report that cannot be true.
        """
        check_arguments(booking_id=booking_id, pod=pod, rank=rank, cached_tokens=cached_tokens)
        check_arguments(prompt_tokens=prompt_tokens, output_tokens=output_tokens)
        _check_name(booking_id)
        if event not in ("started", "first_token", "finished", "failed"):
            raise ValueError(f"event: is {event!r}; give started, first_token, finished or failed")
        report = Report(
            booking_id, event, pod=pod, rank=rank, cached_tokens=cached_tokens,
            prompt_tokens=prompt_tokens, output_tokens=output_tokens,
        )  # fmt: skip
        with self._lock:
            now = self._forget_removed()
            try:
                check_event(report, self._index.table)
            except BadRequestError as error:
                raise ValueError(str(error)) from None
            self._observe(loads, now)
            return carry_out(report, self._picker, now)

    def observe(self, *loads: PodLoad) -> None:
        """Record loads of ranks; loads of unknown ranks are ignored."""
        with self._lock:
            self._observe(loads, self._forget_removed())

    def _observe(self, loads: Sequence[PodLoad], now: float) -> None:
        for one in loads:
            if self._index.ingest.rank(one.pod, one.rank) is not None:
                seen = Observed(one.running, one.waiting, one.kv_usage, now - one.age)
                self._picking.loads.observe(one.pod, one.rank, seen, "gateway")

    def _forget_removed(self) -> float:
        """Forget what is kept about pods that the index has lost; return the time."""
        now = self._index.clock()
        self._picker.expire(now)
        changes = self._index.changes
        if changes != self._changes:
            pods = {pod.id: pod for pod in self._index.table}
            for name, pod in self._pods.items():
                if pods.get(name) is not pod:
                    self._picking.forget(pod)
            self._pods, self._changes = pods, changes
        return now


def _check_name(name: str) -> None:
    if problem := booking_ids.problem_of(name):
        raise ValueError(f"booking_id: {problem}")


def _valid(name: str, table: Table) -> Table:
    """Return a table whose values the router's file would accept, too. Raises ValueError."""
    try:
        return msgspec.convert(msgspec.to_builtins(table), type(table))
    except msgspec.ValidationError as error:
        raise ValueError(f"{name}: {error}") from None


def _picked_of(booking_id: str, choice: Choice) -> Picked:
    """Return a choice as its caller sees it."""
    source = choice.source
    return Picked(
        booking_id,
        [_candidate(option) for option in choice.options[:MOST_CANDIDATES]],
        [_candidate(option) for option in choice.decode[:MOST_CANDIDATES]],
        choice.ask.tokens,
        None
        if source is None
        else Source(
            source.candidate.pod, source.candidate.rank, source.address, source.match.known_tokens
        ),
        choice,
    )


def _candidate(option: Option) -> Candidate:
    candidate, match = option.candidate, option.match
    return Candidate(
        candidate.pod, candidate.rank, option.address, match.matched_tokens, match.believed_tokens,
        candidate.load.waiting_uncached_tokens, option.cost, option.predicted_ttft, option.trust,
        option.serves,
    )  # fmt: skip
