"""`warmpath gateway`: Envoy in front of a router and its pods."""
