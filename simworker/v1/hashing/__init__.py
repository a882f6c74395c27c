"""Block hashes, byte-equal to vLLM's; nothing here knows a block pool."""
