"""Requests of TensorRT-LLM, from submission to their end; no blocks."""
