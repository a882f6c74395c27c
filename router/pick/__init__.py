"""Weighs ranks, chooses one and books it; matching is in `match`, policies in `scorer.policies`."""
