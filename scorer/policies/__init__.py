"""The policies that order candidates: one per file, a frozen dataclass whose fields are its options."""
