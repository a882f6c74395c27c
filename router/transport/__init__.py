"""Transports: a gRPC server over libnghttp2, and gRPC's own server. No service lives here."""
