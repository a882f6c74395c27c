"""Engines' names of the media where blocks lie, and their tiers."""

from warmpath.indexer.engines.event import Tier

TIERS = {
    "gpu": Tier.GPU,
    "cuda": Tier.GPU,
    "cpu": Tier.CPU,
    "cpu_pinned": Tier.CPU,
    "disk": Tier.DISK,
    "fs": Tier.DISK,
    "storage": Tier.DISK,
    "obj": Tier.REMOTE,
    "external": Tier.REMOTE,
    "remote": Tier.REMOTE,
}
"""Medium, lower case and without a device number, to tier."""


def tier_of(medium: str | None) -> Tier:
    """Return a medium's tier; GPU for None."""
    if medium is None:
        return Tier.GPU
    # An unknown medium counts as slower than the GPU, so that its blocks are never overrated.
    return TIERS.get(medium.lower().partition(":")[0], Tier.REMOTE)
