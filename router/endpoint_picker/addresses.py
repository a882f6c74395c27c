"""Endpoints as gateways write them: IP:PORT, with IPv6 in brackets."""

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_address

from warmpath.router.pods.table import Pod


@lru_cache(4096)
def endpoint(address: str) -> str:
    """Return an address in the one form that equal endpoints share; a host's name stays as it is."""
    text = address.strip()
    host, _, port = text.rpartition(":")
    is_bare = ":" in host and not host.startswith("[")
    if not host or is_bare or not port.isdecimal():
        host, port = text, ""
    try:
        ip = ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return text
    shown = f"[{ip}]" if ip.version == 6 else str(ip)
    return f"{shown}:{port}" if port else shown


def pods_at(pods: Iterable[Pod], subset: frozenset[str]) -> list[str]:
    """Return the ids of the pods at these endpoints; an endpoint without a port means all its ports."""
    wanted = {endpoint(one) for one in subset}
    found = []
    for pod in pods:
        address = endpoint(pod.address)
        if address in wanted or address.rpartition(":")[0] in wanted:
            found.append(pod.id)
    return found
