"""Why gRPC got no answer, in words that say what to do."""

import argparse
import re
from urllib.parse import unquote

ANOTHER = "name another with {option}"
NEXT = f"start one ('warmpath serve --config FILE'), or {ANOTHER}"
SIGNS = (
    (("connection refused",), f"nothing listens {{where}}; {NEXT}"),
    (("no such file",), f"there is no such socket; {NEXT}"),
    (("resol", "lookup", "domain name"), f"there is no such host; {ANOTHER}"),
    (
        ("wrong_version", "wrong version"),
        "it listens without TLS: leave --tls-ca out, or this may not be its port of gRPC",
    ),
    (
        ("http1", "expected settings frame"),
        f"HTTP answers there, not gRPC: it may be a port of metrics, or an engine; {ANOTHER}",
    ),
    (
        ("certificate", "verify", "peer name", "unknown_ca"),
        "one refuses the other's certificate; check --tls-ca, --tls-cert, --tls-key and the host",
    ),
    (
        ("ssl", "tls", "handshake", "wrong version"),
        "TLS with it failed; it may listen without TLS: leave --tls-ca out",
    ),
    (
        ("socket closed", "reset", "broken pipe", "http2", "preface", "end of file", "eof"),
        "it closed the connection; it may want {wants}, or this may not be its port of gRPC",
    ),
    (("timeout", "timed out", "deadline"), "no answer in time; --timeout allows more"),
    (("unreachable", "no route"), "there is no way to that host"),
    (("failed to connect",), f"the connection failed; {NEXT}"),
)  # fmt: skip
"""Words in gRPC's own texts, in lower case, and what is said instead."""
DIALLED = re.compile(r"ipv[46]:(\S+): ")
"""The address in such a text: of the addresses of a name, gRPC tells of one that failed."""


def unanswered(
    code: str, message: str, *, option: str, asked: str, args: argparse.Namespace
) -> str:
    """Return why no answer came, by a status's name and text; empty if the status is an answer.

    `option` is how the command names the process that it asks, `asked` its address as given. `args` has
    the options of `router.commands.tls_options`.
    """
    if code == "UNIMPLEMENTED":
        return "it knows no such call: it is not a warmpath router, or an older one"
    if code == "DEADLINE_EXCEEDED":
        return "no answer in time; --timeout allows more"
    if code != "UNAVAILABLE":
        return ""
    said = message.lower()
    words = next((words for signs, words in SIGNS if any(sign in said for sign in signs)), "")
    dialled = DIALLED.search(message)
    at = unquote(dialled[1]) if dialled else asked
    where = "there" if at == asked else f"at {at}, an address of that name"
    return words.format(option=option, where=where, wants=_lacks(args))


def _lacks(args: argparse.Namespace) -> str:
    """Return what a process that closes the connection may miss."""
    if args.tls_ca is None:
        return "TLS (--tls-ca)"
    if args.tls_cert is None:
        return "a certificate (--tls-cert, --tls-key)"
    return "another certificate (--tls-cert, --tls-key)"
