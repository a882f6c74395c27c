"""Refuses calls of gRPC, before their message is read, to callers without the role."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import grpc

from warmpath.h2grpc.method import Method, Refusal
from warmpath.proto.errors import Reason
from warmpath.router.access.callers import Callers, RefusalKind
from warmpath.router.access.roles import is_open
from warmpath.router.transport.call import Call, refused

log = logging.getLogger(__name__)

CODES = {
    RefusalKind.UNKNOWN: (grpc.StatusCode.UNAUTHENTICATED, Reason.UNKNOWN_CALLER),
    RefusalKind.ROLE: (grpc.StatusCode.PERMISSION_DENIED, Reason.NO_ROLE),
}
HEADER = "authorization"


class KeptOutMeter(Protocol):
    """Counts refusals."""

    def kept_out(self, asked: str, why: str) -> None:
        """Count one refusal of a method or path."""


def guarded(
    methods: Mapping[str, Method], callers: Callers, counts: KeptOutMeter
) -> dict[str, Method]:
    """Return methods, by their names /SERVICE/METHOD, behind a check of who calls."""

    def refusal_of(name: str, call: Call) -> Refusal | None:
        refusal = callers.refusal(name, *shown_by(call))
        if refusal is None:
            return None
        short = name.rpartition("/")[2]
        counts.kept_out(short, refusal.why.value)
        log.warning("%s: refused to %s: %s", short, call.peer, refusal.text)
        code, reason = CODES[refusal.why]
        return refused(code, refusal.text, reason)

    return {
        name: method if is_open(name) else replace(method, refusal=partial(refusal_of, name))
        for name, method in methods.items()
    }


def shown_by(call: Call) -> tuple[list[str], Sequence[str]]:
    """Return a caller's authorization headers, and the names in its certificate."""
    return [str(value) for key, value in call.metadata if key == HEADER], call.names
