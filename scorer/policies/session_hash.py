"""Every session has its place: a consistent hash."""

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from random import Random

from scorer.candidate import Candidate, Ranked, Request
from scorer.order import in_order

VIRTUAL_NODES = 64
RING = 2**64


@dataclass(frozen=True, slots=True)
class SessionHash:
    """The candidate whose virtual node comes next after the session on a ring of hashes.

    Consistent hashing as gateways do it by a session's header (Karger et al., 1997; "session" in
    `shared/bench/policy-study.md`): when a candidate goes, only its sessions move. The cost is the share
    of the ring to the candidate's next node, 0 to 1. Without an affinity nothing says where to
    go: all cost the same, and the tie rule takes the one with the fewest requests in flight.
    """

    def rank(self, request: Request, candidates: Sequence[Candidate], rng: Random) -> list[Ranked]:
        """Return the candidates in the order in which the ring meets them."""
        if not request.affinity:
            return in_order([Ranked(one, 0.0) for one in candidates], rng)
        point = _point(request.affinity)
        return in_order([Ranked(one, _distance(point, one)) for one in candidates], rng)


def _distance(point: int, candidate: Candidate) -> float:
    nodes = _nodes(candidate.pod, candidate.rank)
    following = nodes[bisect_left(nodes, point) % VIRTUAL_NODES]
    return (following - point) % RING / RING


# 4,096 ranks are 3 MB; a rank beyond costs its hashes again and nothing else.
@lru_cache(maxsize=4096)
def _nodes(pod: str, rank: int) -> "array[int]":
    return array("Q", sorted(_point(f"{node}/{rank}/{pod}") for node in range(VIRTUAL_NODES)))


def _point(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest())
