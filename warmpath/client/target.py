"""The forms of a router's address.

gRPC's library takes any text: it cuts a port that is too large to 16 bits, and asks DNS for a URL.
"""

from warmpath.process.listen import is_host_port

EXAMPLE = "127.0.0.1:7400"
RESOLVED = ("dns", "ipv4", "ipv6")
"""Schemes of gRPC's whose address ends with host:port; the last two take several, with commas."""
OTHERS = ("unix:", "unix-abstract:", "vsock:", "xds:")
"""Beginnings of gRPC's names that have no port, or one of their own form."""


def problem_of_target(target: object) -> str:
    """Return what is wrong with a router's address; empty if it can be one."""
    if isinstance(target, str) and _is_address(target):
        return ""
    return f"{target!r} is not HOST:PORT, such as {EXAMPLE}, nor unix:/PATH"


def _is_address(target: str) -> bool:
    if target.startswith(OTHERS):
        return True
    scheme, colon, rest = target.partition(":")
    addresses = [target]
    if colon and scheme in RESOLVED:
        # The part between // and / is the DNS server to ask.
        path = rest.partition("//")[2].partition("/")[2] if rest.startswith("//") else rest
        addresses = [path] if scheme == "dns" else path.split(",")
    return all(is_host_port(one) and not one.startswith(":") for one in addresses)
