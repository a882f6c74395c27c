"""Recordings of vLLM's own KV cache manager, repeated on ours; nothing here serves."""
