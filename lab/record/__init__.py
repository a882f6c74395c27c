"""warmpath record: an engine's traffic and events, written down."""
