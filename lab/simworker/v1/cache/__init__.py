"""Blocks, pool, groups and the KV cache manager of v1; no scheduler."""
