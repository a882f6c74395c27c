"""Settings of the KV cache, and the blocks and requests for which memory is enough; no allocation."""
