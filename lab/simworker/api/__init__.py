"""The worker's HTTP: OpenAI's API and the administration as vLLM serves them, and others' paths.

These are TensorRT-LLM's `/kv_cache_events` and `/faults`, which no engine has.
"""
