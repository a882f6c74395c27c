"""Benchmarks of the parts, and their results; not in the wheel, and imported by no product code."""
