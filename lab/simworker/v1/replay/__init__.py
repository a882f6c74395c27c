"""Recordings of vLLM's own KV cache manager, replayed on the simulated one; no serving."""
