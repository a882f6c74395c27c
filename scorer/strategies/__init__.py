"""Strategies: from what a rank holds of a prompt to its score.

Policies choose, strategies only measure.
"""
