"""A router's parts with the service's default settings, asked for scores and picks in process."""

import statistics
import time
from functools import partial
from itertools import count
from random import Random
from typing import Any

from warmpath.indexer.embedded import embedded_index
from warmpath.indexer.keys.key import pack_tokens
from warmpath.indexer.ranks import Ingest
from warmpath.lab.bench.stand.look_up import BLOCKS, TOKENS, no_collector
from warmpath.lab.bench.stand.made_up_fleet import (
    BLOCK_SIZE,
    MODEL,
    WANTED,
    batches_of,
    feed,
    new_ingest,
    prompt_of,
)
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.config import schema as config
from warmpath.router.diagnosis.attribution import Attribution
from warmpath.router.diagnosis.decisions import Decisions
from warmpath.router.load.engine_metrics import Observed
from warmpath.router.load.rank_bookings import Work
from warmpath.router.match.match import Scorer
from warmpath.router.pick.eligible import Eligible, field_of
from warmpath.router.pick.messages import candidate_message
from warmpath.router.pick.options import MOST_CANDIDATES
from warmpath.router.pick.pick import Witness
from warmpath.router.pick.picking import Picking
from warmpath.router.pick.weigh import Ask
from warmpath.router.pods.table import Pod, PodTable
from warmpath.router.prompt.token_prompt import TokenPrompt
from warmpath.scorer.strategies import longest_prefix


def new_picking(ingest: Ingest, *witnesses: Witness, **more: Any) -> Picking:
    """Put the parts together, `more` in place of defaults; ties break the same way in each run."""
    names = map(str, count())
    parts = {"new_id": lambda: next(names), "witnesses": witnesses, **more}
    return Picking(
        config.PickTable(),
        config.BookingTable(),
        config.QueueTable(),
        index=embedded_index(1 << 28),
        scorer=partial(Scorer, ingest, ""),
        rng=Random(1),
        **parts,
    )


PROMPTS = 200
HOLDERS = 3
"""Ranks that hold a prompt."""
BOOKED = 3
"""Requests of a rank that had their first token, after `load`.

Each rank has one more request; on every third rank it waits for its first token.
"""


class Asked:
    """A router's parts as in the service, with picks in flight and a made-up clock.

    Each of `number` pods has `each` ranks, and `HOLDERS` ranks hold each prompt.
    """

    def __init__(self, number: int, prompts: int = PROMPTS, *, each: int = 1) -> None:
        self.ingest, ranks = new_ingest(embedded_index(1 << 28), number, each=each)
        for rank in ranks:
            rank.connected()
        self.prompts = []
        for seed in range(prompts):
            for holder in range(HOLDERS):
                rank = ranks[(seed + holder) % len(ranks)]
                feed(rank, batches_of(seed, BLOCKS, events=1, each=BLOCKS))
            ids = pack_tokens(prompt_of(seed, BLOCKS)[:TOKENS])
            self.prompts.append(TokenPrompt(MODEL, ids))
        self.ranks = ranks
        pods = [
            Pod(ranks[at].pod, "", MODEL, tuple(ranks[at : at + each]))
            for at in range(0, len(ranks), each)
        ]
        self.decisions, self.attribution = Decisions(), Attribution()
        picking = new_picking(self.ingest, self.decisions, self.attribution)
        self._scorer, self.picker = picking.scorer, picking.picker
        self.picking = picking
        self.pods = PodTable(pods)
        self.eligible = Eligible(self.pods)
        self._field = field_of(pods)
        self._flying: list[str] = []
        self._now = 0.0

    def load(self) -> None:
        """Give each rank requests of several sizes, and its engine's figures of them."""
        picking, now = self.picking, self._now
        for number, rank in enumerate(self.ranks):
            for nth in range(BOOKED + 1):
                cached, seconds = 100 * (number % 37), 0.1 + 0.01 * (number % 23)
                work = Work(MODEL, rank.pod, rank.number, TOKENS, cached, seconds)
                booking = picking.bookings.book(work, now)
                if nth < BOOKED or number % 3:
                    picking.bookings.first_token(booking.id, now)
            seen = Observed(BOOKED, number % 5, 0.5, now)
            picking.loads.observe(rank.pod, rank.number, seen)

    def answer_seconds(self, calls: int) -> float:
        """Return the processor seconds of a pick with its answer: the median."""
        taken = []
        # Each prompt is new once.
        for call in range(2 * len(self.prompts)):
            self.answer(call)
        with no_collector():
            for call in range(calls):
                begun = time.process_time()
                self.answer(call)
                taken.append(time.process_time() - begun)
        return statistics.median(taken)

    def answer(self, call: int) -> None:
        """Pick a pod, and make the answer's messages."""
        self._now += 0.001
        prompt = self.prompts[call % len(self.prompts)]
        ask = Ask(prompt, self.eligible(WANTED), WANTED)
        _, choice = self.picker.choose(ask, self._now)
        candidates = [candidate_message(one, 0.0) for one in choice.options[:MOST_CANDIDATES]]
        assert pb.PickResponse(candidates=candidates).SerializeToString()
        assert choice.source is None or candidates

    def score(self, call: int) -> None:
        prompt = self.prompts[call % len(self.prompts)]
        matches = self._scorer.matches(prompt, self.ranks, longest_prefix)
        held = (TOKENS - 1) // BLOCK_SIZE * BLOCK_SIZE
        assert max(one.matched_tokens for one in matches.values()) == held

    def pick(self, call: int) -> None:
        self._now += 0.01
        ask = Ask(self.prompts[call % len(self.prompts)], self._field, WANTED)
        self._flying.append(self.picker.choose(ask, self._now)[0])

    def report(self) -> None:
        """Report the oldest pick: its first token, the tokens found cached, its end."""
        booking, picker = self._flying.pop(0), self.picker
        assert picker.started(booking, self._now, None)
        picker.first_token(booking, self._now)
        picker.found_cached(booking, TOKENS // 2, TOKENS)
        picker.ended(booking, "finished", self._now)
