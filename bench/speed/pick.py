"""The time of a pick in process, beside Score of the same prompt, and in a very large fleet."""

import statistics
import time
from collections.abc import Iterator

from bench.figure import Figure
from bench.stand.look_up import BLOCKS, TOKENS, no_collector
from bench.stand.made_up_fleet import BLOCK_SIZE, MODEL, batches_of, feed, new_ingest, prompt_of
from bench.stand.picking import new_picking
from indexer.embedded import embedded_index
from indexer.keys.token import pack_tokens
from router.diagnosis.attribution import Attribution
from router.diagnosis.decisions import Decisions
from router.load.engine_metrics import Observed
from router.load.rank_bookings import Work
from router.match.scorer import Scorer
from router.pb.warmpath.v1 import router_pb2 as pb
from router.pick.candidate_message import candidate_message
from router.pick.eligible import eligible
from router.pick.options import MOST_CANDIDATES
from router.pick.weigh import Ask
from router.pods.table import Pod, PodTable
from router.prompt.token_prompt import TokenPrompt
from scorer.strategies.longest_prefix import longest_prefix

PROMPTS = 200
HOLDERS = 3
"""Pods that hold a prompt."""
IN_FLIGHT = 8
"""Picks of a pod that have not ended."""
MANY_PODS = 2000
BOOKED = 3
"""Requests of a pod of the large fleet that had their first token.

Each pod has one more request; on every third pod it waits for its first token.
"""


def measure(*, quick: bool) -> list[Figure]:
    """Measure picks in a small fleet, in a larger one, and in a very large one."""
    figures = [figure for pods in (8, 64) for figure in _cost(pods, quick=quick)]
    return [*figures, _of_many(quick=quick)]


def _cost(pods: int, *, quick: bool) -> Iterator[Figure]:
    """Measure the processor time of a pick with its reports and of Score of the same prompt, in turn."""
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


def _of_many(*, quick: bool) -> Figure:
    """Measure the processor time of a pick among very many pods, from the eligible pods to the answer.

    The load of each pod's engine is known.
    """
    asked = _Asked(MANY_PODS, prompts=20)
    asked.load()
    taken = []
    for call in range(5):
        asked.answer(call)
    with no_collector():
        for call in range(20 if quick else 200):
            begun = time.process_time()
            asked.answer(call)
            taken.append((time.process_time() - begun) * 1e3)
    p50 = statistics.median(taken)
    name = f"Pick in process with its answer, {TOKENS:,} ids, {MANY_PODS:,} pods: p50"
    return Figure(name, p50, "ms", 1.0, "1 ms", goal=10.0)


class _Asked:
    """A router's parts as in the service, with picks in flight and a made-up clock."""

    def __init__(self, pods: int, prompts: int = PROMPTS) -> None:
        ingest, ranks = new_ingest(embedded_index(1 << 28), pods)
        self._prompts = []
        for seed in range(prompts):
            for holder in range(HOLDERS):
                rank = ranks[(seed + holder) % pods]
                feed(rank, batches_of(seed, BLOCKS, events=1, each=BLOCKS))
            ids = pack_tokens(prompt_of(seed, BLOCKS)[:TOKENS])
            self._prompts.append(TokenPrompt(MODEL, ids))
        self._ranks = ranks
        self._pods = [Pod(rank.pod, "", MODEL, (rank,)) for rank in ranks]
        picking = new_picking(Decisions(), Attribution())
        self._scorer = Scorer(ingest, "", believed=picking.believed)
        self._picker = picking.picker(self._scorer)
        self._picking = picking
        self._table = PodTable(self._pods)
        self._flying: list[str] = []
        self._now = 0.0

    def load(self) -> None:
        """Give each pod requests of several sizes, and its engine's figures of them."""
        for number, pod in enumerate(self._pods):
            for nth in range(BOOKED + 1):
                cached, seconds = 100 * (number % 37), 0.1 + 0.01 * (number % 23)
                work = Work(MODEL, pod.id, 0, TOKENS, cached, seconds)
                booking = self._picking.bookings.book(work, self._now)
                if nth < BOOKED or number % 3:
                    self._picking.bookings.first_token(booking.id, self._now)
            seen = Observed(BOOKED, number % 5, 0.5, self._now)
            self._picking.loads.observe(pod.id, 0, seen)

    def answer(self, call: int) -> None:
        """Pick a pod, and make the answer's messages."""
        self._now += 0.001
        prompt = self._prompts[call % len(self._prompts)]
        ask = Ask(prompt, eligible(self._table, MODEL, (), ""))
        _, choice = self._picker.choose(ask, self._now)
        candidates = [candidate_message(one, 0.0) for one in choice.options[:MOST_CANDIDATES]]
        assert pb.PickResponse(candidates=candidates).SerializeToString()
        assert choice.source is None or candidates

    def score(self, call: int) -> None:
        """Score a prompt."""
        prompt = self._prompts[call % len(self._prompts)]
        scores = list(self._scorer.score(prompt, self._ranks, longest_prefix))
        held = (TOKENS - 1) // BLOCK_SIZE * BLOCK_SIZE
        assert max(one.matched_tokens for one in scores) == held

    def pick(self, call: int) -> None:
        """Pick a pod for a prompt."""
        self._now += 0.01
        ask = Ask(self._prompts[call % len(self._prompts)], self._pods)
        self._flying.append(self._picker.choose(ask, self._now)[0])

    def report(self) -> None:
        """Report the oldest pick: its first token, the tokens found cached, its end."""
        booking, picker = self._flying.pop(0), self._picker
        assert picker.started(booking, self._now, None)
        picker.first_token(booking, self._now)
        picker.found_cached(booking, TOKENS // 2, TOKENS)
        picker.ended(booking, "finished", self._now)
