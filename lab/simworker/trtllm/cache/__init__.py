"""TensorRT-LLM's cache: the manager, its windows and their blocks; scheduling is above."""
