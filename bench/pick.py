"""The pick: what it costs in process, and how long requests wait with it, in simulations.

The second is measured against the published policies that were the best of some cell of the study, or
are well known (`PEERS`): on the trace of the study where it lies beside the checkout, else on the slice
of it that is here.
"""

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

from bench.demo import TRACE
from bench.figure import Figure
from bench.fleet import BLOCK_SIZE, MODEL, batches_of, feed, new_ingest, prompt_of
from bench.look_up import BLOCKS, TOKENS, no_collector
from bench.simulate_cell import Cell, run
from bench.simulate_summary import Place, by_cell, median
from bench.study import BEST_PUBLISHED, MATRIX_BLOCKS, MATRIX_LOADS, MATRIX_PODS, PUBLISHED
from indexer.embedded import embedded_index
from indexer.token import pack_tokens
from router import config
from router.pick import Ask
from router.picking import Picking
from router.pods import Pod
from router.score import Scorer, TokenPrompt
from scorer.longest_prefix import longest_prefix
from scorer.policy import DEFAULT

PROMPTS = 200
HOLDERS = 3
"""Pods that hold a prompt."""
IN_FLIGHT = 8
"""Of a pod, picks that are not over."""

PEERS = tuple(
    PUBLISHED[name]
    for name in (
        "llmd_token+spec",
        "lmetric+spec",
        "preble+spec",
        "llmd_ratio+spec",
        "band+spec",
        "dynamo+spec@ow=4",
        "approx",
    )
)
STUDY_TRACE = (
    Path(__file__).resolve().parents[2] / "shared" / "traces" / "mooncake-conversation.jsonl.gz"
)
PROCESSES = 2
QUICK_REQUESTS = 3000

P90 = Mapping[Place, Mapping[str, float]]
"""Seconds to the first token, of each cell and policy."""


def measure(*, quick: bool) -> list[Figure]:
    """Measure both."""
    cells = list(_cells(quick=quick))
    return [
        *(figure for pods in (8, 64) for figure in _cost(pods, quick=quick)),
        *_against_the_published(cells),
        _on_vllms_scheduler(cells),
    ]


# What it costs


def _cost(pods: int, *, quick: bool) -> Iterator[Figure]:
    """Measure a pick with its reports, and Score of the same prompt, in turn: processor time."""
    rounds = 300 if quick else 2000
    asked = _Asked(pods)
    for call in range(PROMPTS + pods * IN_FLIGHT):
        asked.pick(call)
    taken: dict[str, list[float]] = {"Pick": [], "with reports": [], "Score": []}
    with no_collector():
        for call in range(rounds):
            begun = time.process_time()
            asked.score(call)
            scored = time.process_time()
            asked.pick(call)
            picked = time.process_time()
            asked.report()
            ended = time.process_time()
            for name, seconds in (
                ("Score", scored - begun),
                ("Pick", picked - scored),
                ("with reports", ended - scored),
            ):
                taken[name].append(seconds * 1e6)
    p50 = {name: statistics.median(times) for name, times in taken.items()}
    for name, what in (("Pick", "Pick"), ("with reports", "Pick and its three reports")):
        yield Figure(
            f"{what} in process, {TOKENS:,} ids, {pods} pods: p50",
            p50[name], "us", p50["Score"], "Score of the same prompt",
        )  # fmt: skip


class _Asked:
    """A router's parts as the service has them, and picks in flight; the time is made up."""

    def __init__(self, pods: int) -> None:
        ingest, ranks = new_ingest(embedded_index(1 << 28), pods)
        self._prompts = []
        for seed in range(PROMPTS):
            for holder in range(HOLDERS):
                rank = ranks[(seed + holder) % pods]
                feed(rank, batches_of(seed, BLOCKS, events=1, each=BLOCKS))
            ids = pack_tokens(prompt_of(seed, BLOCKS)[:TOKENS])
            self._prompts.append(TokenPrompt(MODEL, ids))
        self._ranks = ranks
        self._pods = [Pod(rank.pod, "", MODEL, (rank,)) for rank in ranks]
        picking = Picking(config.Pick(), config.Booking(), wall_offset=0.0)
        self._scorer = Scorer(ingest, "", believed=picking.believed)
        self._picker = picking.picker(self._scorer)
        self._flying: list[str] = []
        self._now = 0.0

    def score(self, call: int) -> None:
        """Score a prompt."""
        prompt = self._prompts[call % PROMPTS]
        scores = list(self._scorer.score(prompt, self._ranks, longest_prefix))
        held = (TOKENS - 1) // BLOCK_SIZE * BLOCK_SIZE
        assert max(one.matched_tokens for one in scores) == held

    def pick(self, call: int) -> None:
        """Pick a pod for it."""
        self._now += 0.01
        ask = Ask(self._prompts[call % PROMPTS], self._pods)
        self._flying.append(self._picker.choose(ask, self._now)[0])

    def report(self) -> None:
        """Tell what became of the oldest pick: it started, answered, found what was cached, ended."""
        booking, picker = self._flying.pop(0), self._picker
        assert picker.started(booking, self._now, None)
        picker.first_token(booking, self._now)
        picker.told(booking, TOKENS // 2, TOKENS)
        picker.ended(booking, "finished", self._now)


# How long requests wait


def _cells(*, quick: bool) -> Iterator[Cell]:
    trace = STUDY_TRACE if STUDY_TRACE.exists() else TRACE
    for pods in MATRIX_PODS:
        for blocks in MATRIX_BLOCKS:
            for load in MATRIX_LOADS:
                if not quick or (pods, blocks) == (MATRIX_PODS[1], MATRIX_BLOCKS[0]):
                    yield Cell(
                        trace, DEFAULT, pods, blocks, load, requests=QUICK_REQUESTS if quick else 0
                    )


def _run(cells: Sequence[Cell], policies: Sequence[str]) -> tuple[P90, list[float]]:
    """Return waiting times, and the shares of the ceiling that the default policy found cached."""
    asked = [replace(cell, policy=policy) for cell in cells for policy in policies]
    with ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool:
        found = by_cell(pool.map(run, asked))
    p90 = {
        place: {policy: median(rows, "ttft_p90_s") for policy, rows in one.items()}
        for place, one in found.items()
    }
    return p90, [median(one[DEFAULT], "hit_share") for one in found.values()]


def _against_the_published(cells: Sequence[Cell]) -> Iterator[Figure]:
    p90, hits = _run(cells, (DEFAULT, *PEERS))
    name = f"{len(cells)} cells of {next(iter(p90))[0]}"
    ours = [cell[DEFAULT] for cell in p90.values()]
    best = [min(cell[peer] for peer in PEERS) for cell in p90.values()]
    yield _to_the_best_single_one(f"TTFT p90, {name}", p90, goal=0.80)
    yield Figure(
        f"TTFT p90, {name}",
        statistics.geometric_mean(ours), "s", statistics.geometric_mean(best),
        f"each cell's best of {', '.join(PEERS)}", goal=0.88,
    )  # fmt: skip
    value, peer = max(zip(ours, best, strict=True), key=lambda one: one[0] / one[1])
    yield Figure(f"TTFT p90, the worst of {name}", value, "s", peer, "its best of these", goal=1.08)
    for what, share, goal in (
        ("tokens found cached, mean", statistics.fmean(hits), 0.92),
        ("tokens found cached, least", min(hits), 0.88),
    ):
        yield Figure(
            f"{what}, {name}", 100 * share, "%", 100.0, "what one cache of all pods' size finds",
            goal=goal, least=True,
        )  # fmt: skip


def _on_vllms_scheduler(cells: Sequence[Cell]) -> Figure:
    p90, _ = _run([replace(cell, engine="vllm") for cell in cells], (DEFAULT, BEST_PUBLISHED))
    return _to_the_best_single_one(
        f"TTFT p90 with vLLM's scheduler, {len(cells)} cells", p90, goal=0.88
    )


def _to_the_best_single_one(name: str, p90: P90, goal: float) -> Figure:
    ours, theirs = (
        statistics.geometric_mean(cell[policy] for cell in p90.values())
        for policy in (DEFAULT, BEST_PUBLISHED)
    )
    return Figure(name, ours, "s", theirs, BEST_PUBLISHED, goal=goal)
