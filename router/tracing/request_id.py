"""The id that a caller or gateway gives to a request, by which its log lines are found elsewhere."""

from warmpath.router.tracing.tracer import Carrier

HEADER = "x-request-id"
"""Envoy's, which most proxies and frameworks share; in lower case."""
MOST_CHARS = 128


def request_id_of(carrier: Carrier) -> str:
    """Return the id in headers or metadata, its beginning if it is long; empty if there is none."""
    for name, value in carrier:
        if name == HEADER and isinstance(value, str):
            return value[:MOST_CHARS]
    return ""
