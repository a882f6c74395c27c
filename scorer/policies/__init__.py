"""The policies that order candidates: one per file, a frozen dataclass whose fields are its options.

Those that others published are in `lab.policies`. Each is registered under
`warmpath.policies` in pyproject.toml (`scorer.policy`).
"""
