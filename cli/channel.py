"""The options by which commands connect to a router: TLS, and the token that says who asks."""

import argparse
from pathlib import Path

from warmpath.cli.tls_options import OptionError, add_tls, check_tls
from warmpath.client.credentials import SettingError
from warmpath.client.sync_client import Client
from warmpath.process.tls import TlsPaths

OPTIONS = {
    "target": "--router", "tls.ca": "--tls-ca", "tls.cert": "--tls-cert", "token_file": "--token-file",
}  # fmt: skip
"""The option of each of the client's arguments."""


def add_channel(parser: argparse.ArgumentParser) -> None:
    """Add the options of the connection."""
    group = parser.add_argument_group("connection")
    add_tls(group, authority="PEM of the router's authority; a plain connection without it")
    group.add_argument("--token-file", type=Path, help="file with the token to send")


def open_client(args: argparse.Namespace) -> Client:
    """Return the client that the options describe. Raises OptionError."""
    check_tls(args)
    tls = None if args.tls_ca is None else TlsPaths(args.tls_ca, args.tls_cert, args.tls_key)
    try:
        return Client(args.router, tls=tls, token_file=args.token_file, timeout=args.timeout)
    except SettingError as error:
        raise OptionError(f"{OPTIONS[error.argument]}: {error.problem}") from error
