"""A server's methods, the gate that may refuse their calls, and the explanation of a refusal."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import grpc

Metadata = tuple[tuple[str, str | bytes], ...]
"""Keys and values; the values of keys that end with -bin are bytes."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The status of a refused call, and the metadata that are sent with it."""

    code: grpc.StatusCode
    text: str
    metadata: Metadata = ()
    reason: str = ""
    """Why, as one word for programs, such as TOO_LARGE."""


class RefusedError(Exception):
    """A call ends with a refusal."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.text)
        self.refusal = refusal


class Explain(Protocol):
    """Makes the refusals of the server itself; `reason` says why in one word, such as TOO_LARGE."""

    def __call__(
        self,
        code: grpc.StatusCode,
        text: str,
        reason: str,
        *,
        retry_seconds: float | None = None,
        **facts: str,
    ) -> Refusal:
        """Return the refusal; `retry_seconds` is the least time before a retry, `facts` say more."""


def unexplained(code: grpc.StatusCode, text: str, reason: str, **_: object) -> Refusal:
    """Return a refusal without metadata."""
    return Refusal(code, text, reason=reason)


@dataclass(frozen=True, slots=True)
class Method:
    """A method. It gets each call as a `h2grpc.call.Call`, or an object like it of another server."""

    run: Callable[[Any], Awaitable[None]]
    """Reads a call's messages and puts its answers. Raises RefusedError to end it with a status."""
    at_once: Callable[[bytes, Any], bytes | None] | None = None
    """Returns the only answer to a call's only message, or None if that must wait: then `run` answers.
    A server need not call this. It saves a task and coroutines, which cost more than most answers."""
    is_unary: bool = False
    """Whether `run` puts one answer and writes none: a server may then send it with the status."""
    refusal: Callable[[Any], Refusal | None] | None = None
    """Returns the status for a caller that may not call, before any message is read; None for others."""


class Gate(Protocol):
    """Refuses calls that would wait too long, before anything but their headers is read."""

    methods: Mapping[str, bool]
    """The methods that it may refuse, /SERVICE/METHOD, and whether each of them is urgent."""

    @property
    def refusal(self) -> Refusal:
        """The status of the calls that it refuses now; mostly the same object, so headers are kept."""

    def rooms(self, client: str) -> tuple[int, int] | None:
        """Return how many calls of a client (`metadata.peer_name`) may begin now; None: any number.

        The first number is for methods that are not urgent, the second for those that are.
        """

    def ending(self, method: str) -> Refusal | None:
        """Return the status of a call that may not begin, since the server ends; None: it may."""

    def ended(self, method: str, refusal: Refusal, seconds: float) -> None:
        """Count a call that was ended before its message came, `seconds` after its headers."""

    def refused(self, method: str, count: int) -> None:
        """Count calls of a method that were refused, since `rooms` had none for them."""
