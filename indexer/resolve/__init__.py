"""One rank's engine hashes to keys and slots; no order of events and no sockets."""
