"""How much random tests try: one profile for all of them, set by WARMPATH_PROFILE.

desk   somebody waits for it: `make test`
deep   nobody does: `make test-deep`, and so CI
soak   `make soak`
"""

import os

SHARES = {"desk": 0.03, "deep": 1.0, "soak": 20.0}
PROFILE = os.environ.get("WARMPATH_PROFILE", "desk")


def examples(deep: int, *, desk: int | None = None) -> int:
    """Return how many examples a test takes of which the profile `deep` takes so many."""
    if PROFILE == "desk" and desk is not None:
        return desk
    return max(5, round(deep * SHARES[PROFILE]))
