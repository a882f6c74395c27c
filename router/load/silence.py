"""The share of first tokens that nobody reports, and whether the router waits for reports at all.

Each request counts once: when its first token is reported, when that report counts as lost, or when the
request ends without one. A request that counted as lost counts again if its report comes after all.
"""

UNREPORTED_SHARE = 0.05
"""Share of unreported first tokens above which the router stops waiting for reports."""
REPORTED_SHARE = 0.02
"""Share below which it waits for them again. A share near a single limit would cross it often."""
LEAST_WEIGHT = 0.02
"""Least weight of the latest first token in the share, a moving average."""


class Unreported:
    """The share of what nobody reported, a moving average."""

    __slots__ = ("counted", "share")

    def __init__(self) -> None:
        self.counted = 0
        self.share = 0.0

    def count(self, *, reported: bool) -> None:
        """Count one that was reported, or is known to be unreported."""
        self.counted += 1
        self.share += max(LEAST_WEIGHT, 1 / self.counted) * ((not reported) - self.share)


class Silence:
    """Whether reports are waited for. `expects_first_tokens` counts until the first request does."""

    def __init__(self, *, expects_first_tokens: bool) -> None:
        self.expects_none = not expects_first_tokens
        """Whether too many first tokens are unreported, so that the router waits for no reports."""
        self._unreported = Unreported()

    def count(self, *, reported: bool) -> None:
        """Count a first token that was reported, or is known to be unreported."""
        self._unreported.count(reported=reported)
        limit = REPORTED_SHARE if self.expects_none else UNREPORTED_SHARE
        self.expects_none = self._unreported.share > limit
