"""Benchmarks of the shared index in Redis, beside llm-d's layout; no product code."""
