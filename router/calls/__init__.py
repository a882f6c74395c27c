"""The gRPC edge: calls, limits on their messages, answers as messages; no decisions about pods."""
