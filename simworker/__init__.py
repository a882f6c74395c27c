"""LLM engines without a GPU, and workers that serve them; it imports none of the other packages."""
