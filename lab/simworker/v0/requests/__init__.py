"""Sequences, groups and their sampling parameters; no blocks."""
