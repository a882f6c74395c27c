"""LLM engines without a GPU, and workers that serve them; it imports no other package of warmpath."""
