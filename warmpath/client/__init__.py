"""Clients of a router's gRPC service: calls, connections, deadlines, retries; no output for people."""
