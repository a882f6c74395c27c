"""gRPC servers: one over libnghttp2 in the thread that answers, or gRPC's own. No service lives here."""
