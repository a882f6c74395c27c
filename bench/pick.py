"""What a pick costs in process, beside Score of the same prompt."""

import statistics
import time
from collections.abc import Iterator

from bench.figure import Figure
from bench.fleet import BLOCK_SIZE, MODEL, batches_of, feed, new_ingest, prompt_of
from bench.look_up import BLOCKS, TOKENS, no_collector
from indexer.embedded import embedded_index
from indexer.token import pack_tokens
from router import config
from router.picking import Picking
from router.pods import Pod
from router.score import Scorer
from router.token_prompt import TokenPrompt
from router.weigh import Ask
from scorer.longest_prefix import longest_prefix

PROMPTS = 200
HOLDERS = 3
"""Pods that hold a prompt."""
IN_FLIGHT = 8
"""Of a pod, picks that are not over."""


def measure(*, quick: bool) -> list[Figure]:
    """Measure it for a small fleet and a larger one."""
    return [figure for pods in (8, 64) for figure in _cost(pods, quick=quick)]


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
