"""Block hashes, byte-equal to vLLM's; no block pool."""
