"""TensorRT-LLM's KV cache: two pools, a manager for each attention window, and its events."""
