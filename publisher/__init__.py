"""The sidecar: one pod's cache, told to routers as keys."""
