"""Generates traffic for users without a log, and to try policies on traffic that none was tuned for.

    docs      questions about long documents, a few close in time
    agent     tool agents: many turns, contexts that grow by tool results of any size
    bursts    one prompt sampled up to 64 times within 100 ms, among chats
    tenants   chats of hundreds of tenants, each tenant with its own system prompt
    reading   whole files, each read a few times, among chats: a seventh of prompts are long and cold

A kind is an endless stream of sessions that begin as a Poisson process; traffic is the first requests of
all sessions merged. Equal seeds give equal requests, and a shorter traffic is the beginning of a longer
one. Blocks have 512 tokens, as in Mooncake's traces. Lengths are heavy-tailed as in published traces;
their parameters were chosen here and not fitted to any trace.
"""

import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from random import Random
from typing import NamedTuple

from warmpath.lab.simulate.traffic.log_requests import MOONCAKE_BLOCK as BLOCK
from warmpath.lab.simulate.traffic.requests import LoggedRequest, LoggedTraffic, with_affinity

DEFAULT_REQUESTS = 6000
MOST_REQUESTS = 100_000
MOST_PROMPT_TOKENS = 120_000
"""A session ends if its next prompt would be longer."""

Session = Iterator[LoggedRequest]
"""The requests of one session, in any order; none is earlier than the session's begin."""


@dataclass(frozen=True, slots=True)
class Generated:
    """The kind and seed of generated traffic."""

    kind: str
    seed: int = 1

    @property
    def name(self) -> str:
        return f"{self.kind} traffic, seed {self.seed}"

    def check(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"--traffic is {self.kind!r}; known: {', '.join(KINDS)}")

    def traffic(self, requests: int = 0) -> LoggedTraffic:
        """Return the first `requests` requests, 6,000 for 0. Raises ValueError for too many."""
        self.check()
        if not 0 <= requests <= MOST_REQUESTS:
            raise ValueError(f"--requests is {requests}, not 0 to {MOST_REQUESTS} (with --traffic)")
        stream = _merged(KINDS[self.kind](Random(f"{self.kind}/{self.seed}")))
        found = list(islice(stream, requests or DEFAULT_REQUESTS))
        return LoggedTraffic(with_affinity(found), BLOCK)


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Integers of a log-normal distribution, clipped at both ends; `sigma` is that of the logarithm."""

    median: float
    sigma: float
    least: int
    most: int

    def draw(self, rng: Random) -> int:
        drawn = self.median * math.exp(rng.gauss(0.0, self.sigma))
        return int(min(self.most, max(self.least, drawn)))


@dataclass(frozen=True, slots=True)
class Pareto:
    """Integers of a Pareto distribution, rounded down, from `least` to `most`.

    A number is x or more with probability (least / x)^alpha; larger ones than `most` become `most`.
    """

    least: float
    alpha: float
    most: int

    def draw(self, rng: Random) -> int:
        return int(min(self.most, self.least * rng.paretovariate(self.alpha)))


@dataclass(frozen=True, slots=True)
class Uniform:
    """Integers of a uniform distribution, both ends included."""

    least: int
    most: int

    def draw(self, rng: Random) -> int:
        return rng.randint(self.least, self.most)


@dataclass(frozen=True, slots=True)
class Pause:
    """Seconds: a minimum plus an exponential distribution; a longer one in a share of cases."""

    least: float
    mean: float
    long_share: float = 0.0
    long_mean: float = 0.0

    def draw(self, rng: Random) -> float:
        is_long = rng.random() < self.long_share
        return self.least + rng.expovariate(1 / (self.long_mean if is_long else self.mean))


@dataclass(frozen=True, slots=True)
class Popularity:
    """The popularity of `count` things by the Zipf-Mandelbrot law: weight 1 / (rank + shift)^s."""

    count: int
    s: float
    shift: float = 0.0

    def weights(self) -> list[float]:
        """Return the things' cumulative weights, for `Random.choices`."""
        return list(accumulate((rank + self.shift) ** -self.s for rank in range(1, self.count + 1)))


def _fresh(rng: Random, blocks: int) -> tuple[int, ...]:
    """Return random keys of `blocks` blocks that no other prompt has."""
    return tuple(rng.getrandbits(64) for _ in range(blocks))


def _prompt(rng: Random, shared: Sequence[int], tokens: int) -> tuple[int, ...]:
    """Return a prompt's keys: as many shared ones as fit into `tokens`, then fresh ones."""
    blocks = -(-tokens // BLOCK)
    return (*shared[:blocks], *_fresh(rng, blocks - len(shared)))


class Conversation(NamedTuple):
    """The distributions of conversations: lengths in tokens, number of turns, and pauses."""

    turns: Uniform | Pareto
    first: LogNormal
    """Tokens of the first prompt after its shared blocks."""
    answer: LogNormal
    further: LogNormal | Pareto
    """Tokens that each further turn adds, besides the previous answer."""
    pause: Pause
    """Seconds from one prompt to the next."""

    def hold(self, rng: Random, at: float, prefix: Sequence[int]) -> Session:
        """Yield prompts, each beginning with all full blocks of the previous one."""
        tokens = len(prefix) * BLOCK + self.first.draw(rng)
        for _ in range(self.turns.draw(rng)):
            if tokens > MOST_PROMPT_TOKENS:
                return
            keys = _prompt(rng, prefix, tokens)
            answer = self.answer.draw(rng)
            yield LoggedRequest(at, tokens, answer, keys)
            prefix = keys[: tokens // BLOCK]
            tokens += answer + self.further.draw(rng)
            at += self.pause.draw(rng)


ASKERS_GAP = 2.5
"""Mean seconds from one session's begin to the next; likewise the other gaps below."""
DOCUMENT = LogNormal(24_000, 0.7, least=4_000, most=110_000)
QUESTIONS, MANY_QUESTIONS, MANY_SHARE = Uniform(2, 8), Uniform(9, 40), 0.15
QUESTION = LogNormal(150, 0.8, least=20, most=3_000)
QUESTION_ANSWER = LogNormal(180, 0.8, least=4, most=1_500)
QUESTION_PAUSE = Pause(0.0, 45.0)


def docs(rng: Random) -> Iterator[tuple[float, Session]]:
    """Yield (begin, session): questions about documents, all after one common block of instructions."""
    instructions = _fresh(rng, 1)
    for at in _begins(rng, ASKERS_GAP):
        document = (*instructions, *_fresh(rng, DOCUMENT.draw(rng) // BLOCK))
        count = MANY_QUESTIONS if rng.random() < MANY_SHARE else QUESTIONS
        yield at, _questions(rng, at, document, count)


def _questions(rng: Random, at: float, document: Sequence[int], count: Uniform) -> Session:
    for _ in range(count.draw(rng)):
        tokens = len(document) * BLOCK + QUESTION.draw(rng)
        yield LoggedRequest(at, tokens, QUESTION_ANSWER.draw(rng), _prompt(rng, document, tokens))
        at += QUESTION_PAUSE.draw(rng)


AGENTS_GAP = 3.0
TOOLS = Popularity(12, s=1.3)
TOOL_BLOCKS = Uniform(3, 14)
"""Number of blocks of a set of tool descriptions, which agents of one kind share."""
AGENT = Conversation(
    turns=Uniform(10, 30),
    first=LogNormal(400, 0.8, least=50, most=8_000),
    answer=LogNormal(90, 1.0, least=5, most=2_000),
    # A tool's result: mostly short, sometimes a file.
    further=Pareto(200, 1.05, most=60_000),
    pause=Pause(1.0, 4.0, long_share=0.15, long_mean=60.0),
)


def agent(rng: Random) -> Iterator[tuple[float, Session]]:
    """Yield (begin, session) of a dozen kinds of tool agents."""
    return _each_of_a_kind(rng, AGENTS_GAP, TOOLS, TOOL_BLOCKS, AGENT)


def _each_of_a_kind(
    rng: Random, gap: float, kinds: Popularity, blocks: Uniform, conversation: Conversation
) -> Iterator[tuple[float, Session]]:
    """Yield (begin, session): conversations that begin with the blocks of their kind."""
    shared = [_fresh(rng, blocks.draw(rng)) for _ in range(kinds.count)]
    weights = kinds.weights()
    for at in _begins(rng, gap):
        [own] = rng.choices(shared, cum_weights=weights)
        yield at, conversation.hold(rng, at, own)


BURSTS_GAP = 0.6
BURST_SHARE = 0.3
COPIES = (4, 8, 8, 16, 16, 32, 64)
WITHIN = 0.1
"""Longest time within which a burst's requests arrive, in seconds."""
SAMPLED = LogNormal(2_000, 1.0, least=200, most=40_000)
SAMPLE = LogNormal(300, 0.7, least=10, most=2_000)
SYSTEM_BLOCKS, SYSTEM_SHARE = 2, 0.5
"""Blocks of the chats' system prompt, and the share of bursts that also begin with it."""
CHAT = Conversation(
    turns=Pareto(1, 1.2, most=8),
    first=LogNormal(1_000, 1.4, least=20, most=60_000),
    answer=LogNormal(250, 0.8, least=5, most=1_500),
    further=LogNormal(100, 1.0, least=10, most=4_000),
    pause=Pause(10.0, 40.0),
)


def bursts(rng: Random) -> Iterator[tuple[float, Session]]:
    """Yield (begin, session): bursts of one prompt each, among chats."""
    system = _fresh(rng, SYSTEM_BLOCKS)
    for at in _begins(rng, BURSTS_GAP):
        if rng.random() < BURST_SHARE:
            yield at, _burst(rng, at, system if rng.random() < SYSTEM_SHARE else ())
        else:
            yield at, CHAT.hold(rng, at, system)


def _burst(rng: Random, at: float, system: Sequence[int]) -> Session:
    tokens = len(system) * BLOCK + SAMPLED.draw(rng)
    keys = _prompt(rng, system, tokens)
    for _ in range(rng.choice(COPIES)):
        yield LoggedRequest(at + rng.random() * WITHIN, tokens, SAMPLE.draw(rng), keys)


CHATS_GAP = 0.25
TENANTS = Popularity(400, s=0.9, shift=2.0)
TENANT_BLOCKS = Uniform(2, 12)
TENANT = Conversation(
    turns=Pareto(1, 1.1, most=12),
    first=LogNormal(250, 1.2, least=10, most=30_000),
    answer=LogNormal(220, 0.9, least=3, most=2_000),
    further=LogNormal(120, 1.2, least=5, most=20_000),
    pause=Pause(3.0, 25.0),
)


def tenants(rng: Random) -> Iterator[tuple[float, Session]]:
    """Yield (begin, session): short chats, each after its tenant's system prompt."""
    return _each_of_a_kind(rng, CHATS_GAP, TENANTS, TENANT_BLOCKS, TENANT)


READERS_GAP = 1.0
FILE_SHARE = 0.36
FILE = LogNormal(44_000, 0.4, least=25_000, most=110_000)
READS = Uniform(1, 4)
ASIDE = Conversation(
    turns=Pareto(1, 1.3, most=10),
    first=LogNormal(900, 1.1, least=20, most=20_000),
    answer=LogNormal(160, 0.9, least=4, most=1_500),
    further=LogNormal(250, 1.2, least=10, most=12_000),
    pause=Pause(3.0, 30.0),
)


def reading(rng: Random) -> Iterator[tuple[float, Session]]:
    """Yield (begin, session): files with a few questions each, among chats, all after a common block."""
    instructions = _fresh(rng, 1)
    for at in _begins(rng, READERS_GAP):
        if rng.random() < FILE_SHARE:
            file = (*instructions, *_fresh(rng, FILE.draw(rng) // BLOCK))
            yield at, _questions(rng, at, file, READS)
        else:
            yield at, ASIDE.hold(rng, at, instructions)


Kind = Callable[[Random], Iterator[tuple[float, Session]]]
KINDS: Mapping[str, Kind] = {
    "docs": docs,
    "agent": agent,
    "bursts": bursts,
    "tenants": tenants,
    "reading": reading,
}


def _begins(rng: Random, gap: float) -> Iterator[float]:
    """Yield the times at which sessions begin, `gap` seconds apart on average, without end."""
    at = 0.0
    while True:
        at += rng.expovariate(1 / gap)
        yield at


def _merged(sessions: Iterator[tuple[float, Session]]) -> Iterator[LoggedRequest]:
    """Yield the requests of all sessions in the order of their arrival."""
    coming: list[tuple[float, int, LoggedRequest]] = []
    number = 0
    for begin, session in sessions:
        while coming and coming[0][0] < begin:
            yield heapq.heappop(coming)[2]
        for one in session:
            heapq.heappush(coming, (one.at, number, one))
            number += 1
