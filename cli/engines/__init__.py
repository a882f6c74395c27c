"""From engines' addresses to a running fleet: what each engine is, the configuration, and the router."""
