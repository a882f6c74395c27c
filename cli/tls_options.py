"""The options by which commands connect with TLS, and the check that they fit each other."""

import argparse
from pathlib import Path

from warmpath.client.unanswered import Names, unanswered

OPTIONS = Names(
    "--router HOST:PORT", "--timeout", "--tls-ca", "--tls-cert, --tls-key",
    "--tls-ca, --tls-cert, --tls-key",
)  # fmt: skip
"""How commands name the settings of their connection."""


class OptionError(ValueError):
    """An option is wrong, or does not fit another, or its file is not usable; the message names it."""


def add_tls(options: "argparse._ActionsContainer", *, authority: str) -> None:
    """Add --tls-ca, with the help `authority`, --tls-cert and --tls-key."""
    options.add_argument("--tls-ca", type=Path, help=authority)
    options.add_argument("--tls-cert", type=Path, help="PEM of the certificate to show")
    options.add_argument("--tls-key", type=Path, help="PEM of its private key")


def check_tls(args: argparse.Namespace) -> None:
    """Raise OptionError unless a certificate has its key, and an authority beside it."""
    if bool(args.tls_cert) != bool(args.tls_key):
        raise OptionError("--tls-cert and --tls-key: give both or none")
    if args.tls_cert and args.tls_ca is None:
        raise OptionError("--tls-cert: needs --tls-ca")


def without_answer(
    code: str, message: str, args: argparse.Namespace, *, asked: str, names: Names = OPTIONS
) -> str:
    """Return why `asked` did not answer, by gRPC's status and text; empty if the status is an answer."""
    has_tls, has_cert = args.tls_ca is not None, args.tls_cert is not None
    return unanswered(code, message, names, asked=asked, has_tls=has_tls, has_cert=has_cert)
