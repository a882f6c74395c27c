"""Every session has its place: a consistent hash."""

from dataclasses import dataclass
from hashlib import blake2b
from random import Random

import numpy as np

from scorer.candidate import Request
from scorer.columns import Columns, Costs

HASHES = 2**64


@dataclass(frozen=True, slots=True)
class SessionHash:
    """The candidate whose hash with the session is the least.

    Rendezvous hashing (Thaler and Ravishankar, 1996), for what gateways do with a ring and a
    session's header ("session" in `shared/bench/policy-study.md`): when a candidate goes, only its
    sessions move. The cost is the hash as a share of all, 0 to 1. Without an affinity nothing says
    where to go: all cost the same, and the tie rule takes the one with the fewest requests in flight.
    """

    def costs(self, request: Request, columns: Columns, rng: Random) -> Costs:
        """Return each candidate's hash with the session."""
        del rng
        if not request.affinity:
            return Costs(np.zeros(len(columns.names)))
        session = blake2b(request.affinity.encode(errors="surrogatepass"), digest_size=32)
        key = session.digest()
        return Costs(np.array([_hash(key, *name) / HASHES for name in columns.names]))


def _hash(key: bytes, pod: str, rank: int) -> int:
    name = f"{rank}/{pod}".encode(errors="surrogatepass")
    return int.from_bytes(blake2b(name, digest_size=8, key=key).digest())
