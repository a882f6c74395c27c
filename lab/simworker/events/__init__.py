"""The cache events that a worker sends: their dialects, their numbering and their sockets."""
