"""The gRPC edge: services, Score's bytes, answers as messages; decisions are made below."""
