"""A block found by its content, so that equal prefixes share memory.

Source: `PrefixCachingBlock` in `vllm/core/block/prefix_caching_block.py` of 0.9.2.
"""

from collections.abc import Sequence

from warmpath.lab.simworker.v0.blocks.block import Block


class PrefixCachingBlock(Block):
    """A block that has a content hash once it and all blocks before it are full."""

    # The hash of a string depends on the process's seed, so nobody outside can aim at a collision. No
    # hash leaves the process, so none has to be reproducible.
    _none_hash = hash("None")

    _content_hash: int | None = None

    def append_token_ids(self, token_ids: list[int]) -> None:
        """Fill slots; if another view shares the block, move to a block of its own first.

        A block that is full then becomes immutable, and moves to the block that has this content
        already, if there is one.
        """
        super().append_token_ids(token_ids)
        if token_ids and self.content_hash is not None:
            self.block_id = self.allocator.promote_to_immutable_block(self)

    @property
    def content_hash(self) -> int | None:
        """Hash of this and all earlier tokens; None unless this and all earlier blocks are full."""
        if self._content_hash is None and self.is_full:
            previous = self._none_hash if self.prev_block is None else self.prev_block.content_hash
            if self.prev_block is None or previous not in {None, self._none_hash}:
                self._content_hash = self.hash_block_tokens(
                    self.prev_block is None, previous, self.token_ids, self.extra_hash
                )
        return self._content_hash

    @classmethod
    def hash_block_tokens(
        cls,
        is_first_block: bool,
        prev_block_hash: int | None,
        cur_block_token_ids: Sequence[int],
        extra_hash: int | None = None,
    ) -> int:
        """Return the hash of a full block.

        It covers whether the block is the first, the hash of the one before, the tokens, and the extra
        hash.
        """
        if is_first_block and prev_block_hash is None:
            prev_block_hash = cls._none_hash
        return hash((is_first_block, prev_block_hash, *cur_block_token_ids, extra_hash))
