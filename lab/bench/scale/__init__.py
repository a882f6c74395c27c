"""The sizing of routers and Redis: processor time and memory of their work."""
