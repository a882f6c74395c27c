"""The policies that order candidates: one per file, a frozen dataclass whose fields are its options.

Those that others published, and simple ones to compare with, are in `lab.policies`. Each is registered
under `warmpath.policies` in pyproject.toml (`scorer.policy`).
"""
