"""Addresses, host:port, as users write them."""

import re
from ipaddress import ip_address
from typing import NamedTuple, Self

_HOST_PORT = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+|):([0-9]{1,5})")


def is_host_port(text: str) -> bool:
    """Return whether a text is host:port, with IPv6 in brackets; an empty host is all addresses."""
    match = _HOST_PORT.fullmatch(text)
    return match is not None and int(match[1]) <= 65535


def is_ip(host: str) -> bool:
    """Return whether a host, without brackets, is an IP address."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


class HostPort(NamedTuple):
    """A host and a port."""

    host: str
    """An IP address, without brackets, or a name."""
    port: int

    @classmethod
    def of(cls, text: str) -> Self:
        """Return the host and the port of a text that `is_host_port`."""
        host, _, port = text.rpartition(":")
        return cls(host.strip("[]"), int(port))

    @property
    def is_ip(self) -> bool:
        """Whether the host is an IP address, which needs no look-up."""
        return is_ip(self.host)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def is_loopback(address: str) -> bool:
    """Return whether only this machine reaches an address: a host:port, or `unix:` and a path."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
