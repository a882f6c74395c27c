"""Words for users where gRPC got no answer: why, and what to do, for the library and the commands.

It imports no gRPC, so that the health check of a page starts quickly.
"""

import re
from typing import NamedTuple
from urllib.parse import unquote


class Names(NamedTuple):
    """The words by which errors name a client's settings: arguments, or options of commands."""

    address: str
    timeout: str
    tls: str
    """The setting that turns on TLS."""
    cert: str
    files: str
    """All settings of files of TLS."""


ARGUMENTS = Names(
    "target", "timeout", "tls=TlsPaths(…)", "tls.cert, tls.key", "tls.ca, tls.cert, tls.key"
)
"""The settings of the library's clients."""

ANOTHER = "name another with {names.address}"
IN_TIME = "no answer in time; {names.timeout} allows more"
NEXT = (
    f"start one ('warmpath gateway --engine URL' or 'warmpath serve --config FILE'), or {ANOTHER}"
)
FULL = "has as many connections as it may (server.http2.max-connections)"
SIGNS = (
    # gRPC says so of calls on a connection that was made, and "failed to connect" of all others.
    (
        ("stream removed",),
        "the connection broke during the call: the router ended, or something on the way closed it",
    ),
    (("connection refused",), f"nothing listens {{where}}; {NEXT}{{other}}"),
    (("no such file",), f"there is no such socket; {NEXT}"),
    (("resol", "lookup", "domain name"), f"there is no such host; {ANOTHER}"),
    (
        ("wrong_version", "wrong version"),
        "it listens without TLS: leave {names.tls} out, or this may not be its port of gRPC",
    ),
    (
        ("http1", "expected settings frame"),
        f"HTTP answers there, not gRPC: it may be a port of metrics, or an engine; {ANOTHER}",
    ),
    (
        ("certificate", "verif", "peer name", "unknown_ca"),
        "one refuses the other's certificate; check {names.files} and the host",
    ),
    (
        ("handshake read failed",),
        f"it closed the connection before TLS was agreed: it has no TLS, {FULL}, or is not gRPC's port",
    ),
    (
        ("ssl", "tls", "handshake", "wrong version"),
        "TLS with it failed; it may listen without TLS: leave {names.tls} out",
    ),
    (
        ("socket closed", "reset", "broken pipe", "http2", "preface", "end of file", "eof"),
        f"it closed the connection: it wants {{wants}}, {FULL}, or this is not its port of gRPC",
    ),
    (("timeout", "timed out", "deadline"), IN_TIME),
    (("unreachable", "no route"), "there is no way to that host"),
    (("failed to connect",), f"the connection failed; {NEXT}"),
)  # fmt: skip
"""Words in gRPC's own texts, in lower case, and the text that a user gets instead."""
DIALLED = re.compile(r"ipv[46]:(\S+): ")
"""The address in such a text: of the addresses of a name, gRPC tells of one that failed."""


def unanswered(
    code: str, message: str, names: Names, *, asked: str, has_tls: bool, has_cert: bool
) -> str:
    """Return why no answer came, by a status's name and text; empty if the status is an answer.

    `asked` is the address as given; `has_tls` and `has_cert`: the client uses TLS, shows a certificate.
    """
    if code == "UNIMPLEMENTED":
        return "it knows no such call: it is not a warmpath router, or an older one"
    if code == "DEADLINE_EXCEEDED":
        return IN_TIME.format(names=names)
    if code != "UNAVAILABLE":
        return ""
    said = message.lower()
    words = next((words for signs, words in SIGNS if any(sign in said for sign in signs)), "")
    dialled = DIALLED.search(message)
    at = unquote(dialled[1]) if dialled else asked
    where, other = "there", ""
    if at != asked:
        where = f"at {at}, an address of that name"
        other = "; if it listens at another address of that name, ask that one to learn what failed"
    wants = f"a certificate ({names.cert})" if has_tls else f"TLS ({names.tls})"
    if has_cert:
        wants = f"another certificate ({names.cert})"
    return words.format(names=names, where=where, other=other, wants=wants)


def tells_more(before: str, after: str) -> bool:
    """Return whether, of the error texts of two attempts, the first says why and the second does not.

    Where a name has several addresses, a router's answer at one of them is hidden by the next attempt if
    that tells of another one, at which nothing listens.
    """
    one, other = DIALLED.search(before), DIALLED.search(after)
    is_other = one is not None and other is not None and one[1] != other[1]
    refused = SIGNS[1][0][0]
    return is_other and refused in after.lower() and refused not in before.lower()
