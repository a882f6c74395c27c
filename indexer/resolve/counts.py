"""Counts of what a rank's events did to its names."""

from dataclasses import dataclass


@dataclass(slots=True)
class ResolverCounts:
    """What happened so far; plain numbers, exported by the process."""

    stored_blocks: int = 0
    removed_blocks: int = 0
    clears: int = 0
    parentless: int = 0
    """Stored blocks whose parent is not known: they have no key yet."""
    adopted: int = 0
    """Those of them whose parent turned up."""
    unplaced: int = 0
    """Stored blocks announced without tokens whose hash is not known, or in sizes that do not fit."""
    unknown_removals: int = 0
    again: int = 0
    """Blocks stored where they were held already, although the engine keeps each once."""
    other_groups: int = 0
    """Blocks of groups that say nothing of what can be reused."""
