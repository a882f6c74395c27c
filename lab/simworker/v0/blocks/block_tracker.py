"""A prefix cache's record of a physical block that is in use.

Source: `BlockTracker` in `vllm/core/block/prefix_caching_block.py` of 0.9.2.
"""


class BlockTracker:
    """Whether a block is in use, when it was read, and whether its content is computed."""

    __slots__ = ("active", "computed", "last_accessed")

    def __init__(self) -> None:
        self.active = False
        self.last_accessed = -1.0
        """Seconds; -1 if never set."""
        self.computed = False
        """Whether the step that filled it is over; look-ups find its content before that."""

    def enable(self, *, computed: bool) -> None:
        """Begin a use."""
        assert not self.active
        self.active = True
        self.last_accessed = -1.0
        self.computed = computed

    def disable(self) -> None:
        """End the use."""
        assert self.active
        self.active = False
        self.last_accessed = -1.0
        self.computed = False
