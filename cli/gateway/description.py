"""The description of a gateway: its address, its router, its pods and its limits.

`extension` and `socket_address` make parts of Envoy's configuration.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal, NamedTuple

from warmpath.process.tls import TlsPaths

FailureMode = Literal["fail-close", "fail-open"]


class AddressError(ValueError):
    """A text is not a valid address."""


class HostPort(NamedTuple):
    """A host and a port."""

    host: str
    """An IP address, without brackets, or a name."""
    port: int

    @property
    def is_ip(self) -> bool:
        """Whether the host needs no look-up."""
        try:
            ip_address(self.host)
        except ValueError:
            return False
        return True

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def address_of(text: str) -> HostPort:
    """Return an address, host:port with IPv6 in brackets. Raises AddressError."""
    host, _, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    is_bracketed = len(host) - len(bare) == 2
    if not bare or not port.isdecimal() or int(port) > 65535 or (":" in bare) != is_bracketed:
        raise AddressError(f"{text!r} is not host:port")
    return HostPort(bare, int(port))


def ip_address_of(text: str) -> HostPort:
    """Return an address that needs no look-up. Raises AddressError."""
    address = address_of(text)
    if not address.is_ip or not address.port:
        raise AddressError(f"{text} is not an IP address and a port, which Envoy needs")
    return address


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """The most of everything that a client can make grow, and the longest waits."""

    connections: int = 10_000
    """Clients' connections."""
    requests: int = 10_000
    """Requests under way."""
    streams: int = 100
    """Requests under way on one client's connection of HTTP/2."""
    body_bytes: int = 8 << 20
    """A request's body; one beyond it is answered with 413. The router's own limit on prompts."""
    retries: int = 3
    """Further pods that are tried after the first."""
    headers_seconds: float = 10.0
    """From the first byte of a request to the end of its headers."""
    silence_seconds: float = 300.0
    """Without a byte in either direction on a request, or without a request on a connection."""
    connect_seconds: float = 1.0
    """Until a connection to a pod or to the router is made."""
    cut_off_seconds: int = 5
    """In which a pod's machine acknowledges nothing: then it counts as cut off from the network."""
    pick_seconds: float = 5.0
    """Until the router answers what it is sent; with fail-close, until it answers a ping."""
    ping_seconds: float = 2.0
    """Between two pings on a connection to the router."""
    check_seconds: float = 1.0
    """Between two checks of the router's health, and until one is answered."""


@dataclass(frozen=True, slots=True)
class GatewayDescription:
    """The gateway: one Envoy, its router and its pods."""

    listen: HostPort
    """Port 0 takes a free one."""
    router: HostPort
    pods: Sequence[HostPort]
    """IP addresses, at least one."""
    failure_mode: FailureMode = "fail-close"
    """The fate of requests while the router cannot be asked: fail-close answers 503, fail-open sends
    them to the pods round robin."""
    router_tls: TlsPaths | None = None
    folder: Path | None = None
    """Envoy's own folder, with the socket of its administration interface and the files that it reads
    again when they are replaced (`reread`). None: it has no such socket, and all is in the bootstrap."""
    logs_requests: bool = False
    """Whether Envoy writes a line for each request to its standard error."""
    limits: GatewayLimits = GatewayLimits()

    @property
    def admin(self) -> Path | None:
        return None if self.folder is None else self.folder / "admin"


Fields = dict[str, Any]

TYPES = "type.googleapis.com/envoy."


def extension(name: str, kind: str, **fields: Any) -> Fields:
    """Return an extension; `kind` is its message's name below `envoy.`."""
    return {"name": name, "typed_config": {"@type": TYPES + kind, **fields}}


def socket_address(address: HostPort) -> Fields:
    """Return a TCP address in the form of Envoy's configuration."""
    return {"socket_address": {"address": address.host, "port_value": address.port}}
