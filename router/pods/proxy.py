"""Finds the proxy of a URL in the environment's variables, as Go's programs (kubectl) read them.

Source: `golang.org/x/net/http/httpproxy`. Unlike Python's own reading it knows networks in NO_PROXY.
"""

import ipaddress
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

WITH_PORT = re.compile(r"\[?([^\[\]]*?)\]?:(\d+)")


def proxy_of(url: str, environ: Mapping[str, str]) -> str:
    """Return the proxy for `url`; empty if it is asked directly."""
    target = urlsplit(url)
    port = target.port or (443 if target.scheme == "https" else 80)
    proxy = _value(environ, f"{target.scheme.upper()}_PROXY")
    if not proxy or _is_direct(target.hostname or "", port, _value(environ, "NO_PROXY")):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _value(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name) or environ.get(name.lower(), "")


def _is_direct(host: str, port: int, direct: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        address = None
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    entries = [entry.strip() for entry in direct.lower().split(",")]
    return any(_has(entry, host, address, port) for entry in entries if entry)


def _has(
    entry: str, host: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None, port: int
) -> bool:
    """Return whether an entry of NO_PROXY names a host."""
    if entry == "*":
        return True
    try:
        network = ipaddress.ip_network(entry, strict=False)
    except ValueError:
        pass
    else:
        return address is not None and address in network
    if match := WITH_PORT.fullmatch(entry):
        entry = match[1]
        return port == int(match[2]) and bool(entry) and _has(entry, host, address, port)
    domain = entry.removeprefix("*").removeprefix(".")
    is_whole = domain == entry
    return bool(domain) and (host.endswith(f".{domain}") or (is_whole and host == domain))
