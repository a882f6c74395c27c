"""The names that a connection's client has: its address, and those in its certificate."""

import ssl
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

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


def properties_of(tls: "ssl.SSLObject | None") -> Properties:
    """Return the properties of a client's certificate under the names that gRPC gives them."""
    if tls is None:
        return {}
    found: dict[str, list[bytes]] = {"transport_security_type": [b"ssl"]}
    shown: Any = tls.getpeercert() or {}
    parts = [part for parts in shown.get("subject", ()) for part in parts]
    if parts:
        subject = ",".join(f"{_SHORT.get(name, name)}={value}" for name, value in reversed(parts))
        found["x509_subject"] = [subject.encode()]
    if names := [value.encode() for name, value in parts if name == "commonName"]:
        found["x509_common_name"] = names
    if others := [value.encode() for _, value in shown.get("subjectAltName", ())]:
        found["x509_subject_alternative_name"] = others
    return found
