"""The contract of an inference API: how its requests are read."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from router.inference_api.body import Body
from router.inference_api.request import Unread
from router.pb.warmpath.v1 import router_pb2 as pb


class UnreadError(Exception):
    """A body has no prompt for a pick; the message says why, without any part of the prompt."""

    def __init__(self, because: Unread, problem: str, characters: int = 0) -> None:
        super().__init__(problem)
        self.because = because
        self.characters = characters
        """The prompt's length, where it is known."""


@dataclass(frozen=True, slots=True)
class Api:
    """An API whose requests are JSON objects with `model` and `stream`."""

    name: str
    fields: tuple[str, ...]
    """The body's other fields that `most_output_tokens` and `prompt` read."""
    most_output_tokens: Callable[[Body], Awaitable[int | None]]
    """Returns the most tokens of one answer. Raises FieldError."""
    prompt: Callable[[Body], Awaitable[pb.Prompt]]
    """Returns the prompt. Raises UnreadError and FieldError."""
