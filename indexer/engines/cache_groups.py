"""Cache groups: models whose layers differ keep several caches, and reuse needs all of them.

Source: vLLM's `kv_cache_coordinator.py` and `single_type_kv_cache_manager.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property

FULL_KINDS = frozenset({"", "full_attention", "mla_attention", "sink_full_attention", "unknown"})
"""Kinds of groups whose block shows that the prefix up to its end is held. Engines with only one group
leave its kind empty."""

WINDOW_KINDS = frozenset({"sliding_window", "sliding_window_mla", "mamba"})
"""Kinds of groups that need only the last blocks before the point of reuse."""

MOST_BLOCK_SIZE = 1 << 20
"""The most tokens of a block."""
MOST_NUMBER = (1 << 31) - 1
"""The most tokens of a window, and so the highest number of a group that is named by its window."""
MOST_GROUP = 255
"""The highest number of a group that an engine counts from 0. With many more a batch would take long,
and all ranks are followed in one thread."""

TRTLLM_WINDOW = "trtllm_window"
"""The kind of all of TensorRT-LLM's attention windows; the largest one decides what can be reused."""


@dataclass(frozen=True, slots=True)
class Group:
    """One cache group of a rank. Sizes are in tokens. Raises ValueError for an impossible size."""

    kind: str
    block_size: int
    window: int = 0
    """The sliding window; 0 where there is none."""

    def __post_init__(self) -> None:
        if not 1 <= self.block_size <= MOST_BLOCK_SIZE:
            raise ValueError(
                f"a block size is {self.block_size}; it must be 1 to {MOST_BLOCK_SIZE}"
            )
        if not 0 <= self.window <= MOST_NUMBER:
            raise ValueError(f"a window is {self.window}; it must be 0 to {MOST_NUMBER}")

    @property
    def is_chained(self) -> bool:
        """Whether its blocks carry tokens from the prompt's start on, so that they have keys."""
        return self.kind in FULL_KINDS or self.kind == TRTLLM_WINDOW

    @property
    def needed(self) -> int:
        """How many of its blocks before the point of reuse must be held; 0 outside `WINDOW_KINDS`.

        A window of w tokens looks back on w - 1 tokens; a state-space group needs only its last state.
        """
        if self.kind not in WINDOW_KINDS:
            return 0
        return max(1, -(-(self.window - 1) // self.block_size))


class Lookahead(IntEnum):
    """Whether a block depends on the token after it, too, and which token that may be."""

    NONE = 0
    PAIRS = 1
    """A block depends on the token after it, which is never a prompt's last one: SGLang under EAGLE
    looks up pairs of adjacent tokens, without a prompt's last token."""
    NEXT = 2
    """A block depends on the token after it, which may be a prompt's last one: vLLM from 0.33, EAGLE."""


class Way(IntEnum):
    """How blocks of a group get their keys."""

    CHAINED = 0
    """A key comes from the block's tokens and the key of the block before it."""
    BY_NAME = 1
    """A key is that of another group's block of the same name."""
    LEFT_OUT = 2
    """The group's blocks get no keys, since they do not show which prompts can be reused."""


@dataclass(frozen=True)
class Layout:
    """How a rank's cache is divided: its groups by number, as far as they are known."""

    groups: Mapping[int, Group] = field(default_factory=dict)
    lookahead: bool = False
    """Whether a block depends on the token after it too (`indexer.keys.key.next_token`)."""

    @cached_property
    def block_size(self) -> int:
        """The tokens of a block with a key; 0 before any block size is known."""
        chained = [group.block_size for group in self.groups.values() if group.is_chained]
        sizes = chained or [group.block_size for group in self.groups.values()]
        return min(sizes, default=0)

    @cached_property
    def is_hybrid(self) -> bool:
        """Whether reuse of a prefix depends on more than one cache group, or on a window."""
        return len(self.groups) > 1 or any(group.needed for group in self.groups.values())

    @cached_property
    def only(self) -> int | None:
        """The one group's number, if reuse needs only its blocks from the first on; else None."""
        return None if self.is_hybrid else next(iter(self.groups), 0)

    @cached_property
    def form(self) -> tuple[int, Lookahead]:
        """Block size and lookahead: all of a layout that a prompt's keys depend on."""
        if not self.lookahead:
            return self.block_size, Lookahead.NONE
        # Of the engines with such blocks, only vLLM names the kinds of its groups.
        named = any(group.kind for group in self.groups.values())
        return self.block_size, Lookahead.NEXT if named else Lookahead.PAIRS

    @cached_property
    def has_prefix(self) -> bool:
        """Whether a prompt's blocks must be held from the first on."""
        return bool(self.prefix) or not self.groups

    def ends(self, blocks: int) -> dict[int, set[int]]:
        """Return groups by how many of a prompt's leading blocks their own whole blocks cover.

        `blocks` is the prompt's number of blocks. Groups that reuse does not need, or whose block is
        longer than the prompt, are left out.
        """
        found: dict[int, set[int]] = {}
        for number, group in self.groups.items():
            if number in self.prefix or number == self.only or group.needed:
                step = max(1, group.block_size // self.block_size)
                found.setdefault(blocks // step * step, set()).add(number)
        found.pop(0, None)
        return found

    def way(self, number: int, group: Group) -> Way:
        """Return how a group's blocks get their keys, given a store with their tokens."""
        if group.kind in WINDOW_KINDS:
            # A window's blocks have the names of the prefix group's blocks, and so their keys.
            return Way.BY_NAME if self.prefix else Way.CHAINED
        if not group.is_chained or (not group.kind and number not in (0, *self.prefix)):
            return Way.LEFT_OUT
        return Way.CHAINED

    @cached_property
    def shown(self) -> int:
        """The group whose blocks count where an answer has only one number for each tier."""
        return self.prefix[0] if self.prefix else min(self.groups, default=0)

    @cached_property
    def prefix(self) -> list[int]:
        """The groups that must hold a prompt's blocks from the first on.

        Where the engine does not name the groups' kinds, that is the group with the lowest number; of
        TensorRT-LLM's windows it is the largest.
        """
        groups = self.groups.items()
        if said := [number for number, group in groups if group.kind in FULL_KINDS - {""}]:
            return sorted(said)
        if unsaid := [number for number, group in groups if group.kind == ""]:
            return [min(unsaid)]
        windows = [number for number, group in groups if group.kind == TRTLLM_WINDOW]
        return sorted(windows, key=lambda number: -self.groups[number].window)[:1]
