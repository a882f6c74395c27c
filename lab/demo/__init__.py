"""warmpath demo: cache-aware picks beside simple rules on a local cluster."""
