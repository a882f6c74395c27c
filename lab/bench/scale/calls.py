"""Processor time and memory of a router's process: calls, events, and the ranks that it follows."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

from google.protobuf.message import Message

from warmpath.indexer.keys.key import pack_tokens
from warmpath.lab.bench.figure import Figure
from warmpath.lab.bench.speed.memory import bytes_of
from warmpath.lab.bench.stand.look_up import TOKENS
from warmpath.lab.bench.stand.made_up_fleet import BLOCK_SIZE, MODEL, prompt_of
from warmpath.lab.bench.stand.servers import Fleet, busy, order, release, resident
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb

LENGTHS = (1_000, TOKENS, 100_000)
PACES = (0, 10_000, 100_000)
"""Blocks that are stored in a second; as many are removed."""
PODS = 8
MANY_PODS = 64
CALLS = 1000
CLIENTS = 4
REPORTS: Sequence[dict[str, Any]] = (
    {"event": pb.ReportRequest.STARTED},
    {"event": pb.ReportRequest.FIRST_TOKEN},
    {"event": pb.ReportRequest.FINISHED, "cached_tokens": TOKENS // 2, "prompt_tokens": TOKENS},
)
"""What each request of a pick reports."""
PROMPT = 640
"""Blocks of a prompt whose events pour in."""
KNOWN_SEED = 1
POURED_SEED = 1000
FOLLOWED = (8, 400)
"""Ranks that are followed directly, for the memory of one."""


def name_of(tokens: int, pace: int) -> str:
    """Return the name of the figure of Scores of a length while blocks pour in, by their pace."""
    return f"router: {CALLS:,} Scores of {tokens:,} ids and {pace:,} blocks"


def measure(*, quick: bool) -> Iterator[Figure]:
    """Measure calls beside events, then the memory of blocks and ranks."""
    rounds = 1 if quick else 3
    with Fleet(PODS, transports=("nghttp2",)) as fleet:
        router = _Loaded(fleet)
        for tokens in LENGTHS:
            fleet.hold(seed=KNOWN_SEED + tokens, prompts=1, blocks=tokens // BLOCK_SIZE)
        for tokens in LENGTHS:
            for pace in PACES:
                yield Figure(name_of(tokens, pace), router.scores(tokens, pace, rounds), "s")
        yield from router.picks(rounds, fleet.pods)
    with Fleet(MANY_PODS, transports=("nghttp2",)) as fleet:
        fleet.hold(seed=KNOWN_SEED + TOKENS, prompts=1, blocks=TOKENS // BLOCK_SIZE)
        yield from _Loaded(fleet).picks(rounds, fleet.pods)
    yield from _memory(quick=quick)


def _memory(*, quick: bool) -> Iterator[Figure]:
    blocks = 50_000 if quick else 1_000_000
    for holders, names in ((1, "same"), (8, "own")):
        each = bytes_of("direct", holders, blocks // holders, names) or 0.0
        yield Figure(f"memory: a million blocks, each held by {holders}", each, "MB")
    few, many = (8, 40) if quick else FOLLOWED
    sizes, spent = [], []
    for ranks in (few, many):
        with Fleet(ranks, transports=("nghttp2",)) as fleet:
            sizes.append(resident(fleet.router.pid))
            spent.append(_idle(fleet.router.pid, 1.0 if quick else 10.0))
    yield Figure(f"memory: a router of {few} ranks without blocks", sizes[0] / 1e6, "MB")
    each = (sizes[1] - sizes[0]) / (many - few) / 1e3
    yield Figure("memory: a further rank that is followed directly", each, "kB")
    for ranks, seconds in zip((few, many), spent, strict=True):
        yield Figure(f"router: 1,000 s in which {ranks} ranks say nothing", seconds, "s")


def _idle(process: int, seconds: float) -> float:
    """Return the processor seconds of a process in 1,000 seconds without work."""
    begun, at = busy(process), time.monotonic()
    time.sleep(seconds)
    return (busy(process) - begun) / (time.monotonic() - at) * 1e3


class _Loaded:
    """A router whose processor time is measured for given numbers of calls and blocks."""

    def __init__(self, fleet: Fleet) -> None:
        self._flood, self._router = fleet.flood, fleet.router
        self._seed = POURED_SEED

    def scores(self, tokens: int, pace: int, rounds: int) -> float:
        """Return the seconds of `CALLS` Scores and of a second's blocks at that pace."""
        request = pb.ScoreRequest(prompt=self._prompt(tokens))
        scores = self._router.stub.Score(request, timeout=30).scores
        [answer] = {one.matched_tokens for one in scores}
        assert answer == (tokens - 1) // BLOCK_SIZE * BLOCK_SIZE
        prompts = rounds * pace // PROMPT
        if prompts:
            shape = {"blocks": PROMPT, "events": 8, "each": 8, "removes": 1, "pace": pace}
            order(self._flood, seed=self._seed, prompts=prompts, **shape)
            self._seed += prompts
        begun, stored = busy(self._router.pid), self._router.stored()
        if prompts:
            release(self._flood)
        self._router.load("Score", request, rounds * CALLS, CLIENTS)
        if prompts:
            assert self._flood.hear() == "sent\n"
            self._router.await_stored(stored + prompts * PROMPT)
        return (busy(self._router.pid) - begun) / rounds

    def picks(self, rounds: int, ranks: int) -> Iterator[Figure]:
        """Measure Picks, and Picks with their three Reports, beside Scores of the same prompt.

        Reports go singly, then those of CLIENTS requests in a call, as the library sends them.
        """
        prompt = self._prompt(TOKENS)
        taken = {"Score": 0.0, "Pick": 0.0, "Report": 0.0, "Reports": 0.0}
        for _ in range(rounds):
            self._ask("Score", [pb.ScoreRequest(prompt=prompt)] * CALLS, taken)
            for name, each in (("Report", 1), ("Reports", CLIENTS)):
                picked = self._ask("Pick", [pb.PickRequest(prompt=prompt)] * CALLS, taken)
                for report in REPORTS:
                    told = [pb.Report(booking_id=one.booking_id, **report) for one in picked]
                    requests = [
                        pb.ReportRequest(booking_id=first.booking_id, also=also, **report)
                        for first, *also in zip(*[iter(told)] * each, strict=True)
                    ]
                    for one in self._ask(name, requests, taken, CLIENTS // each):
                        assert [one.known, *one.also_known] == [True] * each
        score, pick, singly, together = (seconds / rounds for seconds in taken.values())
        pick /= 2
        beside = f"Scores of {TOKENS:,} ids"
        for name, seconds, goal in (
            ("Picks", pick, 2.5),
            ("Picks with their three Reports", pick + singly, 3.5),
            (f"Picks with their three Reports, {CLIENTS} to a call", pick + together, 3.5),
        ):
            named = f"router: {CALLS:,} {name}, {ranks} ranks"
            yield Figure(named, seconds, "s", score, beside, goal=goal)

    def _ask(
        self,
        name: str,
        requests: Sequence[Message],
        taken: dict[str, float],
        clients: int = CLIENTS,
    ) -> list[Any]:
        """Return the answers; add the router's processor seconds to those that `name` has taken."""
        method = requests[0].DESCRIPTOR.name.removesuffix("Request")
        ask, begun = getattr(self._router.stub, method).future, busy(self._router.pid)
        answers = [
            call.result()
            for at in range(0, len(requests), clients)
            for call in [*map(ask, requests[at : at + clients])]
        ]
        taken[name] += busy(self._router.pid) - begun
        return answers

    def _prompt(self, tokens: int) -> pb.Prompt:
        ids = prompt_of(KNOWN_SEED + tokens, tokens // BLOCK_SIZE)[:tokens]
        ids += [0] * (tokens - len(ids))
        return pb.Prompt(model=MODEL, token_ids_packed=pack_tokens(ids))
