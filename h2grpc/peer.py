"""The names that a connection's client has: its address, and those in its certificate."""

import ssl
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from warmpath.process.certificate_names import auth_context

Properties = Mapping[str, Sequence[bytes]]

_SHORT = {
    "commonName": "CN", "organizationName": "O", "organizationalUnitName": "OU",
    "countryName": "C", "localityName": "L", "stateOrProvinceName": "ST",
}  # fmt: skip
"""Short names of a subject's parts (RFC 2253); others are written whole."""


def peer_name(address: Any) -> str:
    """Return a socket's address as gRPC writes it: ipv4:1.2.3.4:5, ipv6:%5B::1%5D:5 or unix:."""
    if not isinstance(address, tuple):
        return "unix:"
    host, port = address[:2]
    if ":" in host:
        return f"ipv6:{quote(f'[{host}]', safe=':')}:{port}"
    return f"ipv4:{host}:{port}"


def address_of(peer: str) -> str:
    """Return the address in a client's name of `peer_name`, which all its connections have in common."""
    return peer.rpartition(":")[0] or peer


def properties_of(tls: "ssl.SSLObject | None") -> Properties:
    """Return the properties of a client's certificate under the names that gRPC gives them."""
    shown: Any = tls.getpeercert() if tls else None
    found = auth_context(shown)
    parts = [part for parts in (shown or {}).get("subject", ()) for part in parts]
    if parts:
        subject = ",".join(f"{_SHORT.get(name, name)}={value}" for name, value in reversed(parts))
        found["x509_subject"] = [subject.encode()]
    return found
