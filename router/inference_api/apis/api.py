"""The contract of an inference API: how its requests are read."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.inference_api.body import Body
from warmpath.router.inference_api.request import Unread


@dataclass(frozen=True, slots=True)
class Api:
    """An API whose requests are JSON objects; some of them have a prompt for a pick."""

    name: str
    fields: tuple[str, ...]
    """The fields of a body that `prompt` reads, `model` aside."""
    prompt: Callable[[Body], Awaitable[pb.Prompt]]
    """Returns the prompt. Raises UnreadError and FieldError."""
    has_ids: bool = False
    """Whether the prompt may be token ids, each of which is a value of the body."""


@dataclass(frozen=True, slots=True)
class UnreadApi:
    """An API whose requests never have a prompt for a pick."""

    name: str
    because: Unread
    problem: str
