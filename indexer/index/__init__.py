"""The contract of a block-to-slots index, and its slots."""
