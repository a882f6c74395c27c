"""Strategies: turn the blocks of a prompt that a rank holds into a score.

They only measure; policies choose.
"""
