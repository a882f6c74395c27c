"""Blocks, sets and tables in flat arrays, and look-ups in them; knows no ranks."""
