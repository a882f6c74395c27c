"""The sidecar that will carry one pod's cache to routers and Redis; it holds no code yet."""
