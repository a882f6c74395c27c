"""What a worker tells of its cache: events, their dialects, their numbering and their sockets."""
