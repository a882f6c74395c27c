"""The error of a call, made of its status and its trailing metadata.

If gRPC got no answer, the error says what to do, for the library and the commands.
"""

import re
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import unquote

import grpc

from warmpath.process.bytes import read_message
from warmpath.proto.errors import DETAILS, PUSHBACK, TYPES
from warmpath.proto.pb.warmpath.wire.v1 import status_details_pb2 as wire


class CallError(Exception):
    """A call failed. `code` is gRPC's status, `message` the router's or gRPC's own text.

    `hint` says what to do where no router has answered; it is empty otherwise. `reason` is the
    machine-readable reason that the router gave (`google.rpc.ErrorInfo`), None if it gave none.
    `retry_after` is the seconds after which a retry has a chance, None if the router named none.
    """

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str,
        *,
        hint: str = "",
        reason: str | None = None,
        retry_after: float | None = None,
        may_repeat: bool = True,
    ) -> None:
        super().__init__(f"{code.name}: {message}" + (f" ({hint})" if hint else ""))
        self.code = code
        self.message = message
        self.hint = hint
        self.reason = reason
        self.retry_after = retry_after
        self.may_repeat = may_repeat
        """False where the router forbids a retry."""


def failure_of(
    error: grpc.RpcError, hint: Callable[[str, str], str] = lambda _code, _text: ""
) -> CallError:
    """Return an error of gRPC's library, of its blocking or its asyncio part, as a CallError.

    `hint` returns what to do where no router has answered, by the status's name and text.
    """
    raised: Any = error
    trailing = {str(key): value for key, value in raised.trailing_metadata() or ()}
    reason, retry_after = _reason_and_retry(trailing.get(DETAILS))
    pushback, may_repeat = trailing.get(PUSHBACK), True
    if pushback is not None:
        # gRFC A6: anything but a number, 0 or more, forbids a retry.
        may_repeat = str(pushback).isascii() and str(pushback).isdigit()
        retry_after = int(pushback) / 1000 if may_repeat else None
    code, text = raised.code(), raised.details() or ""
    return CallError(
        code,
        text,
        # The router's own refusals have a reason, and say what to do.
        hint=hint(code.name, text) if reason is None else "",
        reason=reason,
        retry_after=retry_after,
        may_repeat=may_repeat,
    )


def _reason_and_retry(details: object) -> tuple[str | None, float | None]:
    """Return the reason and the least seconds before a retry in a status's details, None for none."""
    reason: str | None = None
    seconds: float | None = None
    if not isinstance(details, bytes):
        return None, None
    try:
        for detail in read_message(wire.Status, details).details:
            if detail.type_url == f"{TYPES}ErrorInfo":
                reason = read_message(wire.ErrorInfo, detail.value).reason or None
            elif detail.type_url == f"{TYPES}RetryInfo":
                delay = read_message(wire.RetryInfo, detail.value).retry_delay
                seconds = max(0.0, delay.seconds + delay.nanos / 1e9)
    except ValueError:
        # Details that cannot be read change nothing about the call's own status.
        return None, None
    return reason, seconds


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
NEXT = f"start one ('warmpath serve --config FILE'), or {ANOTHER}"
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
