"""The names in the certificate that the other side of a connection has shown."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

COMMON_NAME = "x509_common_name"
ALTERNATIVE_NAME = "x509_subject_alternative_name"
KINDS = ("DNS", "URI")
"""The kinds of alternative names that name a client. gRPC's library also lists IP and e-mail addresses,
which the configuration refuses as a client's name (`router.config.access`)."""


def auth_context(shown: Mapping[str, Any] | None) -> dict[str, list[bytes]]:
    """Return what gRPC's `auth_context` returns, for a certificate of `SSLObject.getpeercert()`.

    `shown` is None or empty if there is no certificate. Other kinds of alternative names are left out.
    """
    if not shown:
        return {}
    common = [
        value for part in shown.get("subject", ()) for key, value in part if key == "commonName"
    ]
    alternative = [value for kind, value in shown.get("subjectAltName", ()) if kind in KINDS]
    found = {COMMON_NAME: common, ALTERNATIVE_NAME: alternative}
    return {key: [name.encode() for name in names] for key, names in found.items() if names}


def names(context: Mapping[str, Iterable[bytes]]) -> Iterator[str]:
    """Yield the names in gRPC's `auth_context`: DNS and URI names, and the common name."""
    for key in (ALTERNATIVE_NAME, COMMON_NAME):
        for name in context.get(key) or ():
            yield name.decode(errors="replace")
