"""Shared mode: Redis is asked for each prompt, within its time; no copy of whole pods."""
