"""Requests of v1: tokens, sampling parameters, and those of which only lengths are known; no blocks."""
