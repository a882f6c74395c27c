"""Blocks of TensorRT-LLM: keys, hashes, pools, the reuse tree and eviction; no requests."""
