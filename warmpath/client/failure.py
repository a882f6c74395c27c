"""The error of a call, made of its status and its trailing metadata."""

from collections.abc import Callable
from typing import Any

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
