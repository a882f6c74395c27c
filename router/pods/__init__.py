"""Pods: table, discovery, following their caches, and health probes; their load is `router/load/`."""
