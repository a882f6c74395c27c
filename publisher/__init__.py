"""The sidecar: it tells routers, as keys, what one pod's cache holds; it scores nothing."""
