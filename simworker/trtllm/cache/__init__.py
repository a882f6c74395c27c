"""TensorRT-LLM's cache: the manager, its windows and what each holds; scheduling is above."""
