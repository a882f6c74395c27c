"""How many examples a state machine or a random test runs."""

import os


def examples(usual: int, *, ci: int | None = None) -> int:
    """Return WARMPATH_EXAMPLES where it is set, `ci` with CI=true where it is given, else `usual`."""
    asked = os.environ.get("WARMPATH_EXAMPLES")
    if asked:
        return int(asked)
    return ci if ci is not None and os.environ.get("CI") else usual
