"""Why no answer came: the words for gRPC's texts."""

import argparse
from pathlib import Path

import pytest

from router.commands.unanswered import unanswered

REFUSED = (
    "failed to connect to all addresses; last error: UNKNOWN: {at}: Failed to connect to remote "
    "host: Connection refused"
)


def said(message: str, *, ca: bool = False, cert: bool = False, asked: str = "localhost:1") -> str:
    args = argparse.Namespace(
        tls_ca=Path("ca.pem") if ca else None, tls_cert=Path("a.pem") if cert else None
    )
    return unanswered("UNAVAILABLE", message, option="--router", asked=asked, args=args)


def test_of_a_name_with_several_addresses_it_says_which_one_failed() -> None:
    words = said(REFUSED.format(at="ipv6:%5B::1%5D:1"))
    assert words.startswith("nothing listens at [::1]:1, an address of that name; start one")
    words = said(REFUSED.format(at="ipv4:127.0.0.1:1"), asked="127.0.0.1:1")
    assert words.startswith("nothing listens there; start one")


@pytest.mark.parametrize(
    ("ca", "cert", "wants"),
    [
        (False, False, "TLS (--tls-ca)"),
        (True, False, "a certificate (--tls-cert, --tls-key)"),
        (True, True, "another certificate (--tls-cert, --tls-key)"),
    ],
)
def test_a_closed_connection_may_want_what_was_not_shown(ca: bool, cert: bool, wants: str) -> None:
    words = said("Socket closed", ca=ca, cert=cert)
    assert words.startswith(f"it closed the connection; it may want {wants}, or")
