"""vLLM v1: the KV cache manager and the unified scheduler, as of 0.32."""
