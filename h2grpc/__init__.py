"""A gRPC server over libnghttp2. Imports nothing of ours; own README, tests and fuzzing."""
