"""Access control: callers by token or certificate, and the role that each call needs; no sockets."""
