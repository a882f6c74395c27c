"""Shared mode: reads Redis for each prompt, within a deadline; no copy of whole pods."""
