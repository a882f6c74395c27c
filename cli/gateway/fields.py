"""Parts of Envoy's configuration, as JSON's values."""

from typing import Any

from warmpath.cli.gateway.description import HostPort

Fields = dict[str, Any]

TYPES = "type.googleapis.com/envoy."


def extension(name: str, kind: str, **fields: Any) -> Fields:
    """Return an extension; `kind` is its message's name below `envoy.`."""
    return {"name": name, "typed_config": {"@type": TYPES + kind, **fields}}


def socket_address(address: HostPort) -> Fields:
    """Return an address of TCP."""
    return {"socket_address": {"address": address.host, "port_value": address.port}}
