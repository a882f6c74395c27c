"""Checks engines' endpoints, and derives those of further ranks."""

import re
from urllib.parse import urlsplit

from warmpath.process.address import is_loopback

ENDPOINT = re.compile(
    r"^(tcp://(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})|(ipc|inproc)://(.{1,100}))$"
)


def endpoint_problem(endpoint: str, ranks: int = 1) -> str:
    """Return why an endpoint is not valid as that of the first of `ranks` ranks; empty if it is."""
    match = ENDPOINT.match(endpoint)
    if "*" in endpoint:
        return f"{endpoint!r} is where an engine binds; name the host to connect to"
    if not match or not _is_port(match[3] or "1"):
        return f"{endpoint!r} is not tcp://host:port, ipc://path or inproc://name (up to 100 characters)"
    if ranks > 1 and not match[3]:
        return f"{endpoint!r} is not tcp://; ranks have a port each"
    if ranks > 1 and not _is_port(str(int(match[3]) + ranks - 1)):
        return f"{endpoint!r} leaves no port below 65536 for {ranks} ranks"
    return ""


def rank_endpoint(endpoint: str, rank: int) -> str:
    """Return a rank's endpoint: rank 0's, with the rank added to the port.

    Source: vLLM's `ZmqEventPublisher.offset_endpoint_port`.
    """
    if not rank:
        return endpoint
    base, _, port = endpoint.rpartition(":")
    return f"{base}:{int(port) + rank}"


def ports_meet(events: str, replay: str, ranks: int) -> str:
    """Return the problem if one rank's replay port is another rank's events port; empty if none is.

    The endpoints are rank 0's; those without ports are not looked at.
    """
    one, other = ENDPOINT.match(events), ENDPOINT.match(replay)
    if not one or not other or not one[3] or one[2] != other[2]:
        return ""
    apart = abs(int(one[3]) - int(other[3]))
    if apart >= ranks:
        return ""
    said = f"port {other[3]} is {apart} above or below the events' port"
    return f"{said}; with {ranks} ranks it must be {ranks} or more"


EXPOSED = (
    "pod %s: its events come from %s in plain text, and nothing proves who sends them: whoever is on "
    "that network can read prompts' token ids or publish blocks of its own "
    "(docs/start/your-engines.md, Plain text)"
)
"""The log message about a pod whose events are not encrypted, with the pod and the endpoint."""


def is_exposed(endpoint: str) -> bool:
    """Return whether events from an endpoint cross a network without encryption."""
    parts = urlsplit(endpoint)
    return parts.scheme in {"tcp", "http"} and not is_loopback(f"{parts.hostname or ''}:0")


def _is_port(digits: str) -> bool:
    return 0 < int(digits) <= 65535
