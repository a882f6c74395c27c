"""An inference request as a pick needs it, and why a body has no prompt for one."""

from collections.abc import Mapping
from typing import Any

import msgspec

from warmpath.prefixstore.chats.chat import TemplateTraits
from warmpath.prefixstore.chats.jinja_template import TemplateError
from warmpath.prefixstore.chats.renderer import ProcessRenderer
from warmpath.prefixstore.workers import ClosedError, FullError
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.prompt.bodies.fields import RawFields
from warmpath.router.prompt.models import ModelTable, UnknownModelError

MadeChat = tuple[list[dict[str, Any]], dict[str, Any]]
"""A chat that an engine makes of another API's body: its messages, and the other fields of its body."""


class UnreadError(Exception):
    """A body has no prompt for a pick; the message says why, without any part of the prompt."""


class NotExactError(UnreadError):
    """A body is right, but only its engine knows its tokens."""


def not_exact(problem: str) -> NotExactError:
    """Return the error for a body whose tokens only the engine knows."""
    return NotExactError(f"the engine's tokens are not known: {problem}")


def not_allowed(problem: str) -> UnreadError:
    """Return the error for a body that the engine itself refuses."""
    return UnreadError(f"the engine is to refuse the body: {problem}")


def object_of(value: Any, name: str) -> dict[str, Any]:
    """Return `value` if it is an object. Raises UnreadError, which names `name`, if not."""
    if not isinstance(value, dict):
        raise not_allowed(f"{name} is no object")
    return value


def list_of(value: Any, name: str) -> list[Any]:
    """Return `value` if it is a list. Raises UnreadError, which names `name`, if not."""
    if not isinstance(value, list):
        raise not_allowed(f"{name} is no list")
    return value


def text_of(fields: Mapping[str, Any], name: str) -> str | None:
    """Return a field that is a text; None if it is missing. Raises UnreadError for other values."""
    value = fields.get(name)
    if not isinstance(value, str | None):
        raise not_allowed(f"{name} is no text")
    return value


class InferenceRequest(msgspec.Struct, frozen=True):
    """An inference request, as far as a pick needs it."""

    model: str
    """As the request names it: a base model, an alias or an adapter. Empty if unknown."""
    prompt: pb.Prompt | None
    """The prompt for a pick, with the request's model unless the body names none. A pick may still
    refuse it, for an unknown model or for messages that no template accepts. None: the pick goes by load
    and by `estimated_tokens` alone."""
    problem: str = ""
    """Why there is no prompt, without any part of it; empty if there is one."""
    estimated_tokens: int = 0
    """The prompt's number of tokens, estimated by length, where there is no prompt; 0 if unknown."""
    text: bytes = b""
    """If only the engine may know the prompt's tokens: bytes that two bodies share about as far as they
    share tokens; else empty."""
    fields: RawFields | None = None
    """The fields of the prompt's body, if the prompt is the body itself."""
    session: str = ""
    """The session that the body names; empty if it names none."""


async def traits_of(
    models: ModelTable, renderer: ProcessRenderer, seconds: float, model: str
) -> TemplateTraits | None:
    """Return the traits of a model's template, by any name of the model, within `seconds`.

    None if there is no template, or if it cannot be tried out now.
    """
    try:
        return await renderer.traits(models.resolve(model)[0].name, seconds)
    except (ClosedError, FullError, KeyError, TemplateError, UnknownModelError):
        return None
