"""Counts of the changes that a rank's events made to its names."""

from dataclasses import dataclass


@dataclass(slots=True)
class ResolverCounts:
    """The counts so far; the process exports them as metrics."""

    stored_blocks: int = 0
    removed_blocks: int = 0
    clears: int = 0
    parentless: int = 0
    """Stored blocks whose parent was not known, so that they had no key yet."""
    adopted: int = 0
    """Blocks counted in `parentless` whose parent was announced later."""
    unplaced: int = 0
    """Stored blocks that get no key: their event has no tokens and an unknown hash, or a block size
    that is not a multiple of the rank's."""
    unknown_removals: int = 0
    again: int = 0
    """Blocks stored where they were held already, although the engine keeps each once."""
    chunk_tokens: int = 0
    """The tokens of a slower tier's block that is longer than the cache's own blocks; 0 for none."""
    lookahead: int = 0
    """The tokens after it on which a block depends, where they are more than one; 0 for none."""
    adapters: int = 0
    """Adapters that prompts' first blocks have named lately."""
    other_groups: int = 0
    """Blocks of groups that do not show which prompts can be reused."""
