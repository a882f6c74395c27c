"""Benchmarks of the shared index in Redis, beside other layouts; nothing here is the product."""
