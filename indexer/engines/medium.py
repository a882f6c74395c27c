"""What engines call the places where blocks lie, brought to tiers."""

from indexer.engines.event import Tier

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
"""Medium, lower case and without a device number, to tier (`shared/engine-events.md`, 2.7, 6.1)."""


def tier_of(medium: str | None) -> Tier:
    """Return a medium's tier; none said means GPU."""
    if medium is None:
        return Tier.GPU
    # A medium that is not known is some slower place: never claim it as GPU.
    return TIERS.get(medium.lower().partition(":")[0], Tier.REMOTE)
