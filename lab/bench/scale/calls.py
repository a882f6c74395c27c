"""Processor time and memory of a router's process: calls, events, and the ranks that it follows."""

import time
from collections.abc import Iterator

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
CALLS = 1000
CLIENTS = 4
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
        picks = f"router: {CALLS:,} Picks of {TOKENS:,} ids, {PODS} ranks"
        yield Figure(picks, router.picks(rounds), "s")
        yield Figure(f"router: {CALLS:,} Reports", router.reports(rounds), "s")
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

    def picks(self, rounds: int) -> float:
        """Return the seconds of `CALLS` Picks."""
        return self._of_calls("Pick", pb.PickRequest(prompt=self._prompt(TOKENS)), rounds)

    def reports(self, rounds: int) -> float:
        """Return the seconds of `CALLS` Reports of one pick."""
        stub, name = self._router.stub, "bench"
        stub.Pick(pb.PickRequest(prompt=self._prompt(TOKENS), booking_id=name), timeout=30)
        report = pb.ReportRequest(booking_id=name, event=pb.ReportRequest.STARTED)
        assert stub.Report(report, timeout=30).known
        return self._of_calls("Report", report, rounds)

    def _of_calls(self, method: str, request: Message, rounds: int) -> float:
        begun = busy(self._router.pid)
        self._router.load(method, request, rounds * CALLS, CLIENTS)
        return (busy(self._router.pid) - begun) / rounds

    def _prompt(self, tokens: int) -> pb.Prompt:
        ids = prompt_of(KNOWN_SEED + tokens, tokens // BLOCK_SIZE)[:tokens]
        ids += [0] * (tokens - len(ids))
        return pb.Prompt(model=MODEL, token_ids_packed=pack_tokens(ids))
