"""Reads what passes through of a response: its first token and its usage. No requests."""
