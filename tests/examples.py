"""The number of examples of random tests: one profile for all of them, set by WARMPATH_PROFILE.

desk   few examples, for `make test`
deep   many examples, for `make test-deep` and CI
soak   most examples, for `make soak`
"""

import os

SHARES = {"desk": 0.03, "deep": 1.0, "soak": 20.0}
PROFILE = os.environ.get("WARMPATH_PROFILE", "desk")


def examples(deep: int, *, desk: int | None = None) -> int:
    """Return a test's number of examples in the present profile, given that of `deep`."""
    if PROFILE == "desk" and desk is not None:
        return desk
    return max(5, round(deep * SHARES[PROFILE]))
