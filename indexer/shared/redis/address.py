"""Parses the URL that says where a deployment's Redis is."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from warmpath.process.address import HostPort

SCHEMES = "redis://, redis-cluster://, redis-sentinel:// (with TLS: rediss…)"
MAX_HOSTS = 64
_PLACE = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([A-Za-z0-9._-]+))(?::([0-9]{1,5}))?")
_SENTINEL_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")


class RedisKind(StrEnum):
    """The kind of deployment: one server, a cluster, or a master named by Sentinels."""

    STANDALONE = "redis"
    CLUSTER = "redis-cluster"
    SENTINEL = "redis-sentinel"


_SCHEMES = {kind.value: (kind, False) for kind in RedisKind} | {
    kind.value.replace("redis", "rediss", 1): (kind, True) for kind in RedisKind
}


class AddressError(ValueError):
    """A URL does not say how to reach Redis. The message does not repeat a password."""


@dataclass(frozen=True, slots=True)
class Address:
    """A URL's parts."""

    kind: RedisKind
    tls: bool
    places: tuple[HostPort, ...]
    """The server; or some of the cluster's nodes; or the sentinels."""
    master: str = ""
    """The sentinels' name for the master; empty without sentinels."""


def parse(url: str, *, named: str = "") -> Address:
    """Return a URL's parts. In errors `named` ("--redis-", say) precedes the names of settings.

    A URL is `redis://host:port`, `redis-cluster://host:port,host:port` or
    `redis-sentinel://host:port,host:port/NAME`; one that begins with `rediss` stands for TLS. The
    default port is 6379, for sentinels 26379. Raises AddressError.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise AddressError(f"Redis URL: it has no scheme; a URL begins with one of {SCHEMES}")
    if scheme not in _SCHEMES:
        raise AddressError(f"Redis URL: {scheme}:// is not one of {SCHEMES}")
    kind, tls = _SCHEMES[scheme]
    if "@" in rest:
        raise AddressError(
            "Redis URL: no user and no password belong in it, since URLs are shown and logged; "
            f"give the user by `{named}user` and the password in a file by `{named}password-file`"
        )
    if "?" in rest or "#" in rest:
        raise AddressError("Redis URL: it takes no options (after ? or #)")
    hosts, _, path = rest.partition("/")
    if kind is RedisKind.SENTINEL:
        if not _SENTINEL_NAME.fullmatch(path):
            raise AddressError(
                f"Redis URL: {path!r} is not the master's name that the sentinels know: "
                "redis-sentinel://host:port,host:port/NAME (1 to 100 of A-Z a-z 0-9 . _ -)"
            )
    elif path:
        raise AddressError(
            f"Redis URL: /{path} is not understood; the index lies in database 0, "
            "and the prefix tells deployments apart"
        )
    port = 26379 if kind is RedisKind.SENTINEL else 6379
    places = tuple(_place(text, port) for text in hosts.split(","))
    if kind is RedisKind.STANDALONE and len(places) > 1:
        raise AddressError(
            f"Redis URL: redis:// names one server, not {len(places)}; several are a cluster's "
            "nodes (redis-cluster://) or sentinels (redis-sentinel://)"
        )
    if len(places) > MAX_HOSTS:
        raise AddressError(f"Redis URL: {len(places)} hosts; {MAX_HOSTS} at most")
    return Address(kind, tls, places, path)


ACCESS = ("ca", "cert", "key", "user", "password_file")
"""The settings beside the URL that say how a server lets in."""


def contradictions(
    address: Address, access: Mapping[str, str], *, named: str = ""
) -> Iterator[tuple[str, str]]:
    """Yield each setting of `ACCESS` that does not fit the others, and why; `named` is as in `parse`."""
    for name in ("ca", "cert", "key"):
        if access[name] and not address.tls:
            yield name, "is for TLS, and url does not begin with rediss"
    if bool(access["cert"]) != bool(access["key"]):
        yield "cert" if access["cert"] else "key", "cert and key: give both or none"
    if access["user"] and not access["password_file"]:
        yield "user", f"needs a {named}password-file"


def _place(text: str, port: int) -> HostPort:
    match = _PLACE.fullmatch(text)
    if match is None:
        raise AddressError(f"Redis URL: {text!r} is not host:port (an IPv6 address in brackets)")
    number = int(match[3]) if match[3] else port
    if not 0 < number <= 65535:
        raise AddressError(f"Redis URL: port {number} of {text!r} is not within 1 to 65535")
    return HostPort(match[1] or match[2], number)
