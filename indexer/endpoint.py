"""Where engines publish: checking the endpoints that one connects to."""

import re

ENDPOINT = re.compile(
    r"^(tcp://(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})|(ipc|inproc)://(.{1,100}))$"
)


def endpoint_problem(endpoint: str, ranks: int = 1) -> str:
    """Return why a ZeroMQ endpoint cannot be connected to; empty where it can."""
    match = ENDPOINT.match(endpoint)
    if "*" in endpoint:
        return f"{endpoint!r} is where an engine binds; name the host to connect to"
    if not match or not _is_port(match[3] or "1"):
        return f"{endpoint!r} is not tcp://host:port, ipc://path or inproc://name (100 characters)"
    if ranks > 1 and not match[3]:
        return f"{endpoint!r} is not tcp://; ranks have a port each"
    if ranks > 1 and not _is_port(str(int(match[3]) + ranks - 1)):
        return f"{endpoint!r} leaves no port below 65536 for {ranks} ranks"
    return ""


def _is_port(digits: str) -> bool:
    return 0 < int(digits) <= 65535
