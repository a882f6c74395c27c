"""The policy that assigns each session to a candidate by consistent hashing."""

from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from random import Random

import numpy as np
from numpy.typing import NDArray

from warmpath.scorer.candidate import Request
from warmpath.scorer.columns import Columns, Costs

Words = NDArray[np.uint64]

HASHES = 2**64

MOST_RANKS = 1 << 16
"""Most ranks whose hash is cached, since mixing a hash with a session's is faster than making it."""


@dataclass(frozen=True, slots=True)
class SessionHash:
    """Picks the candidate whose hash with the session is the least.

    It is rendezvous hashing (Thaler and Ravishankar, 1996) in place of the ring of many gateways: when a
    candidate disappears, only its sessions move. The cost is the hash divided by its range, 0 to 1.
    Without a session all costs are equal, and the tie rule takes the candidate with the fewest requests
    in flight.
    """

    def costs(self, request: Request, columns: Columns, rng: Random) -> Costs:
        """Return each candidate's hash with the session, divided by its range; 0 without a session."""
        del rng
        if not request.affinity:
            return Costs(np.zeros(len(columns.names)))
        names = np.array([_of_rank(*name) for name in columns.names], np.uint64)
        return Costs(_mixed(names ^ np.uint64(_hash(request.affinity))) / HASHES)


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest())


@lru_cache(MOST_RANKS)
def _of_rank(pod: str, rank: int) -> int:
    return _hash(f"{rank}/{pod}")


def _mixed(words: Words) -> Words:
    """Mix 64-bit words so that each bit of a result depends on all bits of its word.

    This is the finaliser of SplitMix64 (Steele, Lea and Flood, 2014).
    """
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
