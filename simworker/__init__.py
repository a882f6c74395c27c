"""A vLLM worker without a GPU. Imports nothing of the other packages."""
