"""LLM engines without a GPU, and workers that serve them; imports none of the other packages."""
