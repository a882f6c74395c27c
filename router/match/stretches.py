"""The stretches of a prompt that ranks hold, and how much of the prompt a request can reuse of them."""

import math
from collections.abc import Collection, Iterable, Sequence

from warmpath.indexer.engines.cache_groups import Layout
from warmpath.indexer.rank import Rank
from warmpath.scorer.match import Match, Span, match_of, spans_of
from warmpath.scorer.reuse import Window, reusable

Held = tuple[int, int, int, str]
"""The number of a cache group, blocks of it (first, past the last) and the tier that holds them."""

Stretches = list[tuple[int, int, str]]
"""Blocks (first, past the last) and the tier that holds them."""


def share(held: dict[Rank, list[Held]], ranks: Iterable[Rank], tiers: Collection[str]) -> None:
    """Give each of `ranks` the blocks that any of them holds in the shared tiers."""
    pool = {piece for pieces in held.values() for piece in pieces if piece[3] in tiers}
    for rank in ranks if pool else ():
        own = held.setdefault(rank, [])
        own.extend(pool.difference(own))


def reusable_match(held: Sequence[Held], layout: Layout, blocks: int) -> Match:
    """Return how much of a prompt's `blocks` a rank can reuse, given the stretches that it holds."""
    if len(held) == 1 and held[0][0] == layout.only:
        return match_of((held[0][1:],), layout.block_size)
    stretches: dict[int, Stretches] = {}
    for number, start, stop, tier in held:
        stretches.setdefault(number, []).append((start, stop, tier))
    groups = layout.groups
    if layout.only is not None:
        return match_of(stretches.get(layout.only, []), layout.block_size)
    size, full = layout.block_size, layout.prefix
    spans = {number: spans_of(of) for number, of in stretches.items()}
    shown = spans.get(full[0], ()) if full else (Span(0, blocks, "gpu"),)
    by_tier = stretches.get(full[0], ()) if full else shown
    prefix = min((_leading(spans.get(number, ())) for number in full), default=blocks)
    windows = [
        Window(
            _joined(spans.get(number, ())),
            step=max(1, group.block_size // size),
            needed=math.ceil(group.needed * min(1.0, group.block_size / size)),
        )
        for number, group in groups.items()
        if group.needed
    ]
    align = math.lcm(*(max(1, groups[number].block_size // size) for number in groups))
    most = reusable(prefix, windows, align)
    kept = [Span(start, min(stop, most), tier) for start, stop, tier in shown if start < most]
    return Match(tuple(kept), size, held=by_tier)


def _joined(spans: Sequence[Span]) -> list[tuple[int, int]]:
    """Return the spans as (first, past the last), with adjacent ones joined."""
    found: list[tuple[int, int]] = []
    for start, stop, _ in spans:
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], stop)
        else:
            found.append((start, stop))
    return found


def _leading(spans: Sequence[Span]) -> int:
    """Return how many leading blocks are held."""
    joined = _joined(spans)
    return joined[0][1] if joined and joined[0][0] == 0 else 0
