"""The live page: the router's state for a browser, over JSON and server-sent events; never a prompt."""
