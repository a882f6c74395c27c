"""The dates of certificates, read from PEM: the standard library shows them only after a handshake.

Also returns the names in the certificate that the other side of a connection has shown.
"""

import re
import ssl
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
UTC_TIME, GENERALIZED_TIME, VERSION = 0x17, 0x18, 0xA0
"""Tags of DER."""


class Validity(NamedTuple):
    """The time in which a certificate counts."""

    begins: datetime
    ends: datetime


def validities(pem: bytes) -> list[Validity]:
    """Return the validity of each certificate in PEM. Raises ValueError for a malformed one."""
    try:
        return [
            _validity(ssl.PEM_cert_to_DER_cert(found.decode("ascii"))) for found in PEM.findall(pem)
        ]
    except (IndexError, ValueError) as error:
        raise ValueError(f"a certificate cannot be read: {error}") from error


def _validity(der: bytes) -> Validity:
    """Read a Certificate of RFC 5280, section 4.1, as far as its validity."""
    [(_, certificate)] = _elements(der)
    (_, signed), *_ = _elements(certificate)
    _serial, _algorithm, _issuer, validity, *_ = (
        content for tag, content in _elements(signed) if tag != VERSION
    )
    begins, ends = _elements(validity)
    return Validity(_time(*begins), _time(*ends))


def _elements(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the tag and the content of each element, one after the other."""
    at = 0
    while at < len(der):
        tag, length, begin = der[at], der[at + 1], at + 2
        if length & 0x80:
            begin += length & 0x7F
            length = int.from_bytes(der[at + 2 : begin], "big")
        at = begin + length
        if at > len(der):
            raise IndexError("it ends early")
        yield tag, der[begin:at]


def _time(tag: int, content: bytes) -> datetime:
    text = content.decode("ascii")
    if tag == UTC_TIME:
        # RFC 5280, section 4.1.2.5.1: years from 50 on are of the 20th century.
        text = ("19" if int(text[:2]) >= 50 else "20") + text
    elif tag != GENERALIZED_TIME:
        raise ValueError(f"it has an element {tag:#x} in place of a time")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


COMMON_NAME = "x509_common_name"
ALTERNATIVE_NAME = "x509_subject_alternative_name"
KINDS = ("DNS", "URI")
"""The kinds of alternative names that name a client. gRPC's library also lists IP and e-mail addresses,
which the configuration refuses as a client's name (`router.config.check`)."""


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
