"""Reads HTTP inference requests and their responses, API by API; knows no pods and no sockets."""
