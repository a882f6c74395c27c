"""A picker over ranks whose blocks a test sets."""

from collections.abc import Sequence
from functools import partial
from itertools import count
from random import Random

import numpy as np

from tests.conformance.reference_index import ReferenceIndex
from tests.router.load.reports import load_of
from warmpath.indexer.engines.cache_groups import Lookahead
from warmpath.indexer.index.slot import RankName
from warmpath.indexer.keys.key import Chain, pack_words
from warmpath.indexer.ranks import Ingest
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.watch.watched_source import WatchedRank
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2 as pb
from warmpath.router.config import schema as config
from warmpath.router.match.match import Scorer
from warmpath.router.peers.exchange import PeerBookings
from warmpath.router.pick.calibration import Calibration, calibrate
from warmpath.router.pick.eligible import Wanted, field_of
from warmpath.router.pick.pick import Pick, Witness
from warmpath.router.pick.picking import Picking
from warmpath.router.pick.weigh import Ask, Choice
from warmpath.router.pods.table import Pod, Role
from warmpath.scorer.candidate import Load
from warmpath.scorer.columns import FACTOR, TERMS
from warmpath.scorer.match import Match

BLOCK = 16


class KeyedPrompt:
    """A prompt whose blocks have the keys given."""

    model = "m"
    is_blind = False
    by_bytes: "KeyedPrompt | None" = None

    def __init__(self, keys: Sequence[int], tokens: int = 0) -> None:
        self.tokens = tokens or len(keys) * BLOCK + 1
        self._keys = list(keys)

    def chain(
        self, block_size: int, hash_seed: str, *, lookahead: Lookahead = Lookahead.NONE
    ) -> Chain:
        del hash_seed, lookahead
        # Blocks of another size have other keys.
        offset = 0 if block_size == BLOCK else block_size << 32
        keys = pack_words([key + offset for key in self._keys])
        return Chain(0, b"", block_size, len(self._keys), (), keys)


PROMPT = KeyedPrompt(range(1, 101))


class SizedPrompt(KeyedPrompt):
    """A prompt whose blocks have other keys in other sizes, as prompts have."""

    def __init__(self, tokens: int) -> None:
        super().__init__((), tokens)

    def chain(
        self, block_size: int, hash_seed: str, *, lookahead: Lookahead = Lookahead.NONE
    ) -> Chain:
        del hash_seed, lookahead
        blocks = (self.tokens - 1) // block_size
        keys = [1000 * block_size + block for block in range(blocks)]
        return Chain(0, b"", block_size, blocks, (), pack_words(keys))


def factors_of(calibration: Calibration, model: str, pods: Sequence[str]) -> list[float]:
    """Return the factors of pods' only ranks while no pod has anything to do."""
    figures = np.zeros((TERMS, len(pods)))
    standing = calibration.standing(model, [RankName(pod, 0) for pod in pods])
    calibrate(figures, standing.usual, standing.far, 0.0)
    factors: list[float] = figures[FACTOR].tolist()
    return factors


def first(choice: Choice) -> str:
    return choice.options[0].candidate.pod


class Parts(Witness):
    """A picker over watched ranks, and all parts that it uses."""

    def __init__(
        self,
        pods: int = 3,
        roles: Sequence[Role] = (),
        *,
        router: str = "",
        most: int = 1000,
        shared_tiers: frozenset[str] = frozenset(),
        witnesses: Sequence[Witness] = (),
        **options: object,
    ) -> None:
        """Build the parts; with a name in `router`, bookings are shared with other routers.

        `options` are those of [pick].
        """
        self.now = 1000.0
        self.ingest = Ingest(
            ReferenceIndex(), hash_seed="", pending_bytes=1, stale_after=1.0, clock=lambda: self.now
        )
        self.placed: list[Pick] = []
        names = map("p{}".format, count())
        self.picking = Picking(
            config.PickTable(**{"max_believed_blocks": 10_000, **options}),  # type: ignore[arg-type]
            config.BookingTable(max_bookings=most),
            config.QueueTable(),
            index=ReferenceIndex(),
            scorer=partial(
                Scorer, self.ingest, "", shared_tiers={"m": shared_tiers}, assumed_block_size=BLOCK
            ),
            new_id=lambda: next(names),
            rng=Random(1),
            witnesses=witnesses or (self,),
            share=partial(PeerBookings, router, KeyNames("test")) if router else None,
        )
        self.bookings, self.loads = self.picking.bookings, self.picking.loads
        self.believed = self.picking.believed
        self.calibration, self.peers = self.picking.calibration, self.picking.peers
        self.pods = [
            self.pod(f"pod-{number}", roles[number] if roles else "both") for number in range(pods)
        ]
        self.picker = self.picking.picker

    def pod(self, name: str, role: Role = "both") -> Pod:
        rank = self.ingest.watch(name, 0)
        rank.connected()
        self.tell(rank, "exact")
        return Pod(name, f"{name}:80", "m", (rank,), role=role)

    def blind(self, name: str) -> Pod:
        rank = self.ingest.add_blind(name, 0)
        return Pod(name, f"{name}:80", "m", (rank,), has_events=False)

    def rank(self, pod: int) -> WatchedRank:
        [rank] = self.pods[pod].ranks
        assert isinstance(rank, WatchedRank)
        return rank

    def size_blocks(self, pod: int, block_size: int) -> None:
        """Let a pod have blocks of another size."""
        self.tell(self.rank(pod), "exact", block_size=block_size)

    def tell(
        self, rank: WatchedRank, trust: str, *changes: pb.Change, block_size: int = BLOCK
    ) -> None:
        group = pb.Group(number=0, kind="full_attention", block_size=block_size)
        state = pb.RankState(trust=trust, reason="told", groups=[group])
        rank.take_delta(pb.Delta(changes=changes, state=state))

    def warm(self, pod: int, blocks: int, tier: str = "gpu", trust: str = "exact") -> None:
        """Let a pod hold the first `blocks` blocks of PROMPT."""
        keys = pack_words(list(range(1, blocks + 1)))
        self.tell(self.rank(pod), trust, pb.Change(added=pb.Keys(tier=tier, keys=keys)))

    def ask(self, prompt: KeyedPrompt = PROMPT, **fields: object) -> Ask:
        wanted = Wanted("m", disaggregated=bool(fields.pop("disaggregated", False)))
        return Ask(prompt, field_of(fields.pop("pods", self.pods)), **{"wanted": wanted, **fields})  # type: ignore[arg-type]

    def weigh(self, **fields: object) -> Choice:
        return self.picker.weigh(self.ask(**fields), self.now)  # type: ignore[arg-type]

    def choose(self, **fields: object) -> tuple[str, Choice]:
        return self.picker.choose(self.ask(**fields), self.now)  # type: ignore[arg-type]

    def answer(self, booking_id: str, after: float = 0.0) -> None:
        """Report a first token after some seconds, and the end at once."""
        self.now += after
        self.picker.first_token(booking_id, self.now)
        self.picker.ended(booking_id, "finished", self.now)

    def served(self, after: float = 0.0, **fields: object) -> str:
        """Pick, and report the answer after some seconds; return the pod."""
        booking_id, choice = self.choose(**fields)
        self.answer(booking_id, after)
        return first(choice)

    def load(self, pod: int) -> Load:
        return load_of(self.bookings, f"pod-{pod}", 0, self.now)

    def wait(self, pod: int) -> float:
        return self.load(pod).wait

    def match(self, prompt: KeyedPrompt = PROMPT) -> Match:
        """Return what is known of a prompt on the best rank."""
        return self.weigh(prompt=prompt).options[0].match

    def arriving(self, prompt: KeyedPrompt = PROMPT) -> dict[str, int]:
        options = self.weigh(prompt=prompt).options
        return {one.candidate.pod: one.match.arriving_tokens for one in options}

    def picked(self, placed: Pick, choice: Choice) -> None:
        del choice
        self.placed.append(placed)
