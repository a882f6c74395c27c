"""Sequences, groups and their adapters; no blocks."""
