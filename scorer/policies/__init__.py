"""The policies that order candidates: one per file, a frozen dataclass whose fields are its options.

Those that others published are in `scorer.policies.published`. Each is registered under
`warmpath.policies` in pyproject.toml (`scorer.policy`).
"""
