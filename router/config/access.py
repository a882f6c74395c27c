"""Finds contradictions in access control: [server.tls], [[clients]], listeners that others reach."""

from collections.abc import Iterator
from ipaddress import ip_address

from warmpath.process.listen import is_host_port, is_loopback
from warmpath.router.config.form import Path, Problem, repeated
from warmpath.router.config.schema import ClientSpec, Config


def contradictions(config: Config) -> Iterator[Problem]:
    """Yield each contradiction in access control: the path of a key, and the problem with its value."""
    if config.server.tls.client_ca and not config.server.tls.cert:
        yield ("server", "tls", "client-ca"), "needs cert and key"
    yield from _clients(config)
    if config.server.insecure:
        return
    for key, address, lacks in exposed(config):
        yield (
            ("server", key),
            f"{address} is reached by other machines: it needs {lacks}, or server.insecure = true",
        )


def exposed(config: Config) -> Iterator[tuple[str, str, str]]:
    """Yield each listener that other machines reach unprotected: its key, its address, what it lacks."""
    server = config.server
    lacks = [
        name
        for name, given in (("[server.tls]", server.tls.cert), ("[[clients]]", config.clients))
        if not given
    ]
    for key, address in (("listen", server.listen), ("metrics-listen", server.metrics_listen)):
        if lacks and is_host_port(address) and not is_loopback(address):
            yield key, address, " and ".join(lacks)


def _clients(config: Config) -> Iterator[Problem]:
    yield from repeated("clients", "name", [client.name for client in config.clients])
    certificates: set[str] = set()
    for position, client in enumerate(config.clients):
        at = ("clients", position)
        if not client.roles:
            yield (*at, "roles"), "is empty; give one or both of score, read"
        if bool(client.token_file) == bool(client.certificate):
            yield (*at, "token-file"), "give one of token-file and certificate"
        elif client.certificate:
            yield from _certificate(config, client, at)
            if client.certificate in certificates:
                yield (*at, "certificate"), f"{client.certificate!r} is another client's already"
            certificates.add(client.certificate)


def _certificate(config: Config, client: ClientSpec, at: Path) -> Iterator[Problem]:
    name = client.certificate
    if not config.server.tls.client_ca:
        yield (
            (*at, "certificate"),
            "needs server.tls.client-ca, by which certificates are asked for",
        )
    # gRPC lists these names beside DNS and URI names; an HTTP listener does not.
    if _is_address(name) or ("@" in name and "://" not in name):
        yield (*at, "certificate"), f"{name!r} is no DNS name, URI or common name"


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
