"""Answers Score and ListPods with messages; finds what pods hold for llm-d's and Dynamo's callers.

No sockets.
"""

import math
from collections.abc import Callable, Sequence
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from warmpath.indexer.rank import Rank
from warmpath.indexer.trust import Trust
from warmpath.process.loop import MANY_RANKS, in_turns, turn_after
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.wire.v1 import score_request_pb2 as wire
from warmpath.router.calls.replies import Replies, score_rest, unknown_pod
from warmpath.router.match.match import Matches, Scorer
from warmpath.router.pick.messages import trust_message
from warmpath.router.pods.namespaces import asked
from warmpath.router.pods.table import Pod, PodTable
from warmpath.router.prompt.limits import BadRequestError, TimeLeft, check_name
from warmpath.router.prompt.parse import LONG, gives_ids
from warmpath.router.prompt.plain import PlainPrompt
from warmpath.router.prompt.reader import PromptReader, Trace
from warmpath.router.prompt.token_prompt import ReadPrompt, TokenPrompt
from warmpath.router.tracing.steps import NO_STEPS, Step, Steps
from warmpath.scorer.candidate import Load
from warmpath.scorer.strategies import DEFAULT, STRATEGIES, Strategy, longest_prefix

PODS_AT_ONCE = 64
"""Pods listed before other tasks get a turn: about two milliseconds' work."""

NAMES_AT_ONCE = 256
"""Unknown pods listed before other tasks get a turn: less than a millisecond's work."""

RANKS: Callable[[Pod], tuple[Rank, ...]] = attrgetter("ranks")
"""Returns a pod's ranks."""

ENGINE: Callable[[Pod], str] = attrgetter("engine")
"""Returns the kind of a pod's engine."""


class Scored(msgspec.Struct, frozen=True):
    """An answer to Score, with the figures that metrics count."""

    response: bytes
    """A ScoreResponse."""
    prompt_tokens: int
    most: int
    """The most leading tokens of the prompt that any rank holds."""


class Wanted(msgspec.Struct, frozen=True):
    """A prompt and the pods that a Score asks about."""

    prompt: TokenPrompt
    covered_chars: int
    """As in `ReadPrompt`."""
    pods: list[Pod]
    ranks: list[Rank]
    """The ranks of `pods`."""
    unknown: list[str]
    """The names that the Score gives and no pod of the model has."""


class HeldBlocks(NamedTuple):
    """The blocks of a prompt that the pods of its model hold, for callers of other indexers."""

    prompt: TokenPrompt
    pods: list[Pod]
    matches: Matches
    """All full blocks of the prompt count, the one that ends with its last token too. Beliefs that the
    router's own picks made are in them, and are no part of `Match.known_tokens` and `Match.held`."""


class Answerer:
    """Answers Score and ListPods.

    `clock` is monotonic; a time of the ingest + `wall_offset()` is seconds since the Unix epoch. `load`
    returns a rank's load at a time of the clock; without it pods are listed without theirs.
    """

    def __init__(
        self,
        reader: PromptReader,
        scorer: Scorer,
        pods: PodTable,
        *,
        clock: Callable[[], float],
        wall_offset: Callable[[], float],
        load: Callable[[str, int, float], Load] | None = None,
        steps: Steps = NO_STEPS,
    ) -> None:
        self._steps = steps
        self._reader = reader
        self._load = load
        self._scorer = scorer
        self._pods = pods
        self._clock = clock
        self._wall_offset = wall_offset
        self._replies = Replies(wall_offset)

    def waits(self, request: wire.ScoreRequest, plain: PlainPrompt | None) -> bool:
        """Return whether the answer to a Score may wait for a tokenizer or for Redis."""
        return self._scorer.remote is not None or not (plain or gives_ids(request.prompt))

    async def score(
        self,
        request: wire.ScoreRequest,
        timeout: float,
        patience: float = math.inf,
        plain: PlainPrompt | None = None,
    ) -> Scored:
        """Answer Score. Tokenising takes at most `timeout` seconds, all waits together `patience`.

        A `plain` prompt stands in for the request's.
        """
        left = TimeLeft(patience) if self._scorer.remote else None
        strategy = _strategy(request)
        trace = Trace(self._clock) if request.explain else None
        read = await self._reader.read(plain or request.prompt, timeout, trace)
        wanted = self._wanted(request, read)
        if left:
            await self._scorer.refresh(wanted.prompt, wanted.ranks, left.seconds())
            if trace:
                trace.step("ask the shared index")
        found = self._looked_up(wanted, strategy)
        await turn_after(len(wanted.ranks))
        unknown: list[bytes] = []
        async for pod_id in in_turns(wanted.unknown, NAMES_AT_ONCE):
            unknown += unknown_pod(pod_id)
        return self._scored(request, wanted, found, strategy, unknown=unknown, trace=trace)

    def score_at_once(self, request: wire.ScoreRequest, plain: PlainPrompt | None) -> Scored | None:
        """Answer Score as `score` does, if that waits for nothing and takes less than a millisecond.

        The result is None otherwise.
        """
        if plain is None or len(plain.ids) > LONG or request.explain or self._scorer.remote:
            return None
        strategy = _strategy(request)
        wanted = self._wanted(request, self._reader.read_plain(plain))
        if wanted.unknown or len(wanted.ranks) > MANY_RANKS:
            return None
        return self._scored(request, wanted, self._looked_up(wanted, strategy), strategy)

    async def held_blocks(self, message: pb.Prompt, timeout: float, patience: float) -> HeldBlocks:
        """Return what each pod holds; waits are bounded, and errors are raised, as by Score."""
        left = TimeLeft(patience)
        read = await self._reader.read(message, timeout)
        pods = self._pods.of_model(read.prompt.model)
        prompt = replace(read.apart(map(ENGINE, pods)), is_whole=True)
        asked(prompt, pods)
        ranks = [rank for pod in pods for rank in pod.ranks]
        await self._scorer.refresh(prompt, ranks, left.seconds())
        matches = self._scorer.matches(prompt, ranks, longest_prefix)
        await turn_after(len(ranks))
        return HeldBlocks(prompt, pods, matches)

    def _wanted(self, request: wire.ScoreRequest, read: ReadPrompt) -> Wanted:
        pods, unknown = self._pods.of_model(read.prompt.model), list[str]()
        if request.pods:
            for name in request.pods:
                check_name("pods", name)
            by_id = {pod.id: pod for pod in pods}
            named = dict.fromkeys(request.pods)
            pods = [by_id[name] for name in named if name in by_id]
            unknown = [name for name in named if name not in by_id]
        prompt = read.apart(map(ENGINE, pods))
        asked(prompt, pods)
        ranks = [*chain.from_iterable(map(RANKS, pods))]
        return Wanted(prompt, read.covered_chars, pods, ranks, unknown)

    def _scored(
        self,
        request: wire.ScoreRequest,
        wanted: Wanted,
        found: tuple[Matches, list[Trust]],
        strategy: Strategy,
        *,
        unknown: Sequence[bytes] = (),
        trace: Trace | None = None,
    ) -> Scored:
        """Return the answer for what was looked up; `unknown` are the entries of unknown pods."""
        begun = self._steps.begin()
        prompt = wanted.prompt
        parts, most = self._replies.parts(wanted.pods, wanted.ranks, *found, strategy)
        parts += unknown
        parts.append(score_rest(prompt.tokens, wanted.covered_chars, request.request_id))
        if trace:
            trace.step("score")
            # Concatenated messages are one message to protobuf, with the fields of both.
            explained = pb.ScoreResponse(explanation=trace.explanation(prompt.ids))
            parts.append(explained.SerializeToString())
        response = b"".join(parts)
        self._steps.took(Step.REPLY, begun)
        if self._steps.tracer.is_on:
            self._steps.tracer.note(
                {
                    "warmpath.model": prompt.model,
                    "warmpath.prompt_tokens": prompt.tokens,
                    "warmpath.matched_tokens": most,
                }
            )
        return Scored(response, prompt.tokens, most)

    def _looked_up(self, wanted: Wanted, strategy: Strategy) -> tuple[Matches, list[Trust]]:
        """Return the matches of ranks, and the trust in each: both of one moment, as the answer is."""
        begun = self._steps.begin()
        matches = self._scorer.matches(wanted.prompt, wanted.ranks, strategy)
        self._steps.took(Step.MATCH, begun)
        # Not `Matches.trust`: a call for every rank of every Score takes longer.
        known = matches.trusts.get
        return matches, [known(rank) or rank.trust for rank in wanted.ranks]

    async def list_pods(self, request: pb.ListPodsRequest) -> pb.ListPodsResponse:
        listed = pb.ListPodsResponse()
        async for pod in in_turns(self._pods, PODS_AT_ONCE):
            if not request.model or pod.model == request.model:
                listed.pods.add(
                    id=pod.id,
                    address=pod.address,
                    model=pod.model,
                    ready=pod.ready,
                    status=pod.withheld or pod.status.reason,
                    served_models=pod.status.models,
                    role=pod.role,
                    ranks=[self._rank(rank) for rank in pod.ranks],
                )
        return listed

    def _rank(self, rank: Rank) -> pb.Rank:
        message = pb.Rank(
            rank=rank.number,
            trust=trust_message(rank.trust, self._wall_offset()),
            block_size=rank.layout.block_size,
            tiers=[
                pb.TierBlocks(tier=tier, blocks=blocks) for tier, blocks in rank.blocks().items()
            ],
            events=pb.EventCounts(**rank.counts()),
            copies=rank.blocks_in_use(),
            capacity=rank.capacity,
        )
        if rank.sequence is not None:
            message.sequence = rank.sequence
        if self._load is not None:
            load = self._load(rank.pod, rank.number, self._clock())
            message.running, message.waiting = load.in_flight, load.waiting
        return message


def _strategy(request: wire.ScoreRequest) -> Strategy:
    strategy = STRATEGIES.get(request.strategy or DEFAULT)
    if strategy is None:
        reason = f"is {request.strategy!r}; known: {', '.join(STRATEGIES)}"
        raise BadRequestError("strategy", reason)
    return strategy
