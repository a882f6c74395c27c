"""The worker's HTTP: the APIs that generate tokens, and the administration as vLLM serves it.

TensorRT-LLM's `/kv_cache_events` and the worker's own `/faults`, which no engine has, are there too.
"""
