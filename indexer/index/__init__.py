"""The contract of a block-to-slots index, its forms in pure Python, and its slots.

The compiled form is `indexer.compiled`.
"""
