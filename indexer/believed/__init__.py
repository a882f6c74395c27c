"""Beliefs: blocks that prompts brought to ranks and that no event has announced; no announced blocks."""
