"""Finds where a text may be cut without changing its tokens, with the proof.

Nothing is stored or tokenised here.
"""
