"""Benchmarks of the parts, one a module, and their curves; the shared index is `lab.bench.redis`."""
