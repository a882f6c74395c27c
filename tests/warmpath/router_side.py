"""A router's own parts, without sockets, and its answers in a form that can be compared with scores."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from warmpath import PodScore
from warmpath.client.calls import AnyPrompt, request_of
from warmpath.indexer.embedded import embedded_index
from warmpath.indexer.follow.instance import Engine
from warmpath.indexer.ranks import Ingest
from warmpath.indexer.stream.machine import PENDING_BYTES
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.wire.v1 import score_request_pb2 as wire
from warmpath.router.calls.score import Answerer
from warmpath.router.config import schema as config
from warmpath.router.config.files import engine_credentials
from warmpath.router.match.match import Scorer
from warmpath.router.pods.table import Pod, PodTable
from warmpath.router.prompt.limits import PromptLimits
from warmpath.router.prompt.reader import PromptReader
from warmpath.router.prompt.texts import texts

MODEL = "m"


class Shown(NamedTuple):
    """What an answer shows of one rank; the times are left out, as the clocks differ."""

    pod: str
    rank: int
    score: float
    matched_tokens: int
    believed_tokens: int
    tiers: dict[str, int]
    level: str
    reason: str
    ready: bool


def shown(scores: Iterable[PodScore]) -> list[Shown]:
    """Return what the library's scores show."""
    return [
        _shown(one, {str(tier): tokens for tier, tokens in one.tiers.items()}, str(one.trust.level))
        for one in scores
    ]


def _shown(one: PodScore | pb.PodScore, tiers: dict[str, int], level: str) -> Shown:
    reason = one.trust.reason
    counted = one.score, one.matched_tokens, one.believed_tokens
    return Shown(one.pod, one.rank, *counted, tiers, level, reason, one.ready)


def shown_by(response: pb.ScoreResponse) -> list[Shown]:
    """Return what a router's answer shows."""
    return [
        _shown(
            one,
            {tier.tier: tier.tokens for tier in one.tiers},
            pb.Trust.Level.Name(one.trust.level).lower(),
        )
        for one in response.scores
    ]


class RouterSide:
    """The parts of a router from an engine's frames to an answer's bytes."""

    def __init__(self, reader: PromptReader, runner: asyncio.Runner) -> None:
        self.now = 0.0
        self._runner = runner
        self._ingest = Ingest(
            embedded_index(1 << 24), hash_seed="", pending_bytes=PENDING_BYTES,
            stale_after=config.EventsTable().stale_seconds, clock=lambda: self.now,
        )  # fmt: skip
        self._table = PodTable()
        scorer = Scorer(self._ingest, "")
        self._answerer = Answerer(
            reader, scorer, self._table, clock=lambda: self.now, wall_offset=lambda: 0.0
        )

    def add(self, pod: str, engine: str = "vllm", *, ranks: int = 1, blocks: int = 0) -> None:
        described = Engine(pod, MODEL, engine, events="", ranks=ranks, blocks=blocks)
        followed = [self._ingest.add(source) for source in described.sources()]
        for rank in followed:
            rank.connected()
        self._table.add(Pod(pod, "", MODEL, tuple(followed), engine=engine, blocks=blocks))

    def frame(self, pod: str, sequence: int, payload: bytes, rank: int = 0) -> None:
        followed = self._ingest.rank(pod, rank)
        followed.live_many([("", sequence, payload)])  # type: ignore[union-attr]

    def score(
        self, prompt: AnyPrompt, *, pods: Sequence[str] = (), strategy: str = ""
    ) -> list[Shown]:
        given = {"prompt": prompt, "pods": pods, "strategy": strategy}
        asked = request_of(pb.ScoreResponse, MODEL, given)
        request = wire.ScoreRequest.FromString(asked.SerializeToString())
        scored = self._runner.run(self._answerer.score(request, 10.0))
        return shown_by(pb.ScoreResponse.FromString(scored.response))


@contextmanager
def reading() -> Iterator[tuple[PromptReader, asyncio.Runner]]:
    """Provide what reads the prompts of a router, and the loop that it runs on."""
    engines = engine_credentials(config.ProbeTable(), Path())
    context = texts(config.Config([config.ModelSpec(MODEL)]), Path(), engines)
    with asyncio.Runner() as runner:
        read = runner.run(context.__aenter__())
        try:
            yield PromptReader(read, PromptLimits(1 << 20, 1 << 20)), runner
        finally:
            runner.run(context.__aexit__(None, None, None))
