"""The router's index, scores and picks inside your own process; no sockets."""
