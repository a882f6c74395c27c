"""Redis servers on loopback for local clusters: one, or a Redis Cluster of several."""
