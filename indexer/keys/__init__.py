"""Token ids to chained block keys, and segments of them; no index and no engine."""
