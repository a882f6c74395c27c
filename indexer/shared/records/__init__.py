"""Pods' records as readers see them, and the trust in them; no blocks."""
