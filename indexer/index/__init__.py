"""The contract of a block-to-slots index, its form in pure Python, and its slots."""
