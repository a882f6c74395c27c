"""Beliefs: blocks that prompts brought to ranks and no event has announced yet; no announced block."""
