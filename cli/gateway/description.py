"""The description of a gateway: its address, its router and its pods."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from warmpath.process.listen import is_host_port, is_ip
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
        return is_ip(self.host)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def address_of(text: str) -> HostPort:
    """Return an address, host:port with IPv6 in brackets. Raises AddressError."""
    if not is_host_port(text) or text.startswith((":", "[]")):
        raise AddressError(f"{text!r} is not host:port")
    host, _, port = text.rpartition(":")
    return HostPort(host.strip("[]"), int(port))


def ip_address_of(text: str) -> HostPort:
    """Return an address that needs no look-up. Raises AddressError."""
    address = address_of(text)
    if not address.is_ip or not address.port:
        raise AddressError(f"{text} is not an IP address and a port, which Envoy needs")
    return address


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
    again when they are replaced. None: it has no such socket, and all is in the bootstrap."""
    logs_requests: bool = False
    """Whether Envoy writes a line for each request to its standard error."""
    body_bytes: int = 8 << 20
    """Longest body of a request; a longer one gets 413. The router's own limit on prompts."""

    @property
    def admin(self) -> Path | None:
        return None if self.folder is None else self.folder / "admin"
