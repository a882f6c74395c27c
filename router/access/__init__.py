"""Who may ask: callers by token or certificate, and the role that each call needs; no sockets."""
