"""The sidecar: it sends routers the keys of the blocks in one pod's cache; it scores nothing."""
