"""Trace replay, the demo, and benchmarks against peers."""
