"""The contract of a block-to-slots index, its pure forms and its slots.

The compiled form is `indexer.compiled`.
"""
