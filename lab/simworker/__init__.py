"""LLM engines without a GPU, and workers that serve them; this package imports none of the others."""
