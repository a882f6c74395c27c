"""The oracle: what an engine's cache held, moment by moment."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from warmpath.indexer.engines.event import Tier
from warmpath.indexer.keys.segment import SEGMENT

Held = dict[Tier, set[int]]
"""The keys of the held blocks, by tier."""


@dataclass(slots=True)
class Content:
    """What the cache held from one change to the next; times as in `History.changed`."""

    held: Held
    begun: float
    """Before the change that made it so."""
    ended: float = math.inf
    """After the next change."""
    everywhere: set[int] = field(init=False)
    """The keys that any tier holds."""

    def __post_init__(self) -> None:
        self.everywhere = set().union(*self.held.values())

    def leading(self, keys: Sequence[int]) -> int:
        """Return how many leading blocks of a prompt are held in any tier."""
        held = self.everywhere
        return next((n for n, key in enumerate(keys) if key not in held), len(keys))


class History:
    """What one engine's cache has held since its start, when it was empty.

    No change is timed more exactly than by the times before and after it. Between these two the cache may
    have had either content, so both count.
    """

    def __init__(self) -> None:
        self._contents = [Content({tier: set() for tier in Tier}, -math.inf)]

    def changed(self, before: float, after: float, held: Held) -> None:
        """Note a change: what is held now, and times before and after the change, in seconds."""
        self._contents[-1].ended = after
        self._contents.append(Content(held, before))

    def since(self, moment: float) -> Iterator[Content]:
        """Yield every content that the cache may have had at a moment or later, the present one first."""
        for content in reversed(self._contents):
            if content.ended < moment:
                return
            yield content

    def most_held(self, keys: Sequence[int], since: float) -> int:
        """Return the most leading blocks of a prompt that were held at any time since a moment."""
        return max(content.leading(keys) for content in self.since(since))

    def least_held(self, keys: Sequence[int], since: float) -> int:
        """Return the leading blocks of a prompt that were held all the time since a moment."""
        return min(content.leading(keys) for content in self.since(since))

    def flaw(self, keys: Sequence[int], blocks: int, held: Held | None, since: float) -> str:
        """Return what is wrong with a claim on the present content; empty if it was true since a moment.

        The claim is of a prompt's leading blocks, and of all its blocks by tier where it tells them.
        """
        if blocks > self.most_held(keys, since):
            return "too high"
        if blocks < self.least_held(keys, since):
            return "too low"
        if held is None:
            return ""
        if Content(held, since).leading(keys) != blocks:
            return "not what its tiers hold"
        # Segments are read one by one, so each may be from another moment.
        for start in range(0, len(keys), SEGMENT):
            part = set(keys[start : start + SEGMENT])
            for tier in (Tier.GPU, Tier.CPU):
                found = held.get(tier, set()) & part
                if not any(found == one.held[tier] & part for one in self.since(since)):
                    return "other blocks of a segment"
        return ""
