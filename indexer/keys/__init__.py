"""Makes chained block keys of token ids, and segments of keys; knows no index and no engine."""
