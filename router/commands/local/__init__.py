"""`warmpath demo` and `warmpath fleet`: processes on loopback, and traffic for them.

Benchmarks live in `bench/`.
"""
