"""A request's prompt to tokens and blocks; no pods and no index."""
