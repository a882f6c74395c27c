"""An inference request as a pick needs it.

`Unread` says why a request has no prompt, so that load alone decides. `ModelTraits` finds the traits of
a model's chat template, by any name of the model.
"""

from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import Any, TypeAlias

import msgspec

from warmpath.prefixstore.chats.chat import TemplateTraits
from warmpath.prefixstore.chats.process_renderer import ProcessRenderer
from warmpath.prefixstore.chats.renderer import RendererClosedError, RendererFullError
from warmpath.prefixstore.chats.template import TemplateError
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.prompt.models import ModelTable, UnknownModelError


class Unread(StrEnum):
    """The reasons, each one word for programs."""

    UNKNOWN_PATH = "UNKNOWN_PATH"
    """No API with this path is known."""
    NO_PREFIX = "NO_PREFIX"
    """The engine computes the whole prompt, whatever its cache holds: for embeddings, say."""
    BODY_ENCODED = "BODY_ENCODED"
    """The body is compressed; it is never decompressed."""
    BODY_NOT_JSON = "BODY_NOT_JSON"
    """The body is no JSON object in UTF-8, or its content type says so."""
    BODY_TOO_LARGE = "BODY_TOO_LARGE"
    """The body has too many bytes, values or tokens."""
    SEVERAL_PROMPTS = "SEVERAL_PROMPTS"
    """The body has several prompts, which a pick cannot place together."""
    NO_PROMPT = "NO_PROMPT"
    """The body has no prompt, or a prompt that the engine refuses."""
    NOT_EXACT = "NOT_EXACT"
    """The engine's tokens depend on something that is not known here."""


class UnreadError(Exception):
    """A body has no prompt for a pick; the message says why, without any part of the prompt."""

    def __init__(self, because: Unread, problem: str) -> None:
        super().__init__(problem)
        self.because = because


def not_exact(problem: str) -> UnreadError:
    """Return the error for a body whose tokens only the engine knows."""
    return UnreadError(Unread.NOT_EXACT, f"the engine's tokens are not known: {problem}")


def not_allowed(problem: str) -> UnreadError:
    """Return the error for a body that the engine itself refuses."""
    return UnreadError(Unread.NO_PROMPT, f"the engine is to refuse the body: {problem}")


def object_of(value: Any, name: str) -> dict[str, Any]:
    """Return a value that is an object. Raises UnreadError."""
    if not isinstance(value, dict):
        raise not_allowed(f"{name} is no object")
    return value


def list_of(value: Any, name: str) -> list[Any]:
    """Return a value that is a list. Raises UnreadError."""
    if not isinstance(value, list):
        raise not_allowed(f"{name} is no list")
    return value


def text_of(fields: Mapping[str, Any], name: str) -> str | None:
    """Return a field that is a text or missing. Raises UnreadError."""
    value = fields.get(name)
    if not isinstance(value, str | None):
        raise not_allowed(f"{name} is no text")
    return value


class InferenceRequest(msgspec.Struct, frozen=True):
    """An inference request, as far as a pick needs it."""

    api: str
    """The name of the API in the table (`apis/table.py`); `unknown` for other paths."""
    model: str
    """As the request names it: a base model, an alias or an adapter. Empty if unknown."""
    prompt: pb.Prompt | None
    """The prompt for a pick, with the request's model unless the body names none. A pick may still
    refuse it, for an unknown model or for messages that no template accepts. None: the pick goes by load
    and by `reckoned_tokens` alone."""
    unread_because: Unread | None = None
    """Why there is no prompt; None if there is one."""
    problem: str = ""
    """The same in words, without any part of the prompt; empty if there is one."""
    reckoned_tokens: int = 0
    """The prompt's number of tokens, estimated by length, where there is no prompt; 0 if unknown."""


TraitsOf: TypeAlias = Callable[[str], Awaitable[TemplateTraits | None]]
"""Returns the traits of a model's template; None if there is none, or if it cannot be tried out now."""


class ModelTraits:
    """Asks the renderer, waiting at most `seconds`."""

    def __init__(self, models: ModelTable, renderer: ProcessRenderer, seconds: float) -> None:
        self._models = models
        self._renderer = renderer
        self._seconds = seconds

    async def __call__(self, model: str) -> TemplateTraits | None:
        """Return the traits of a model's template, as TraitsOf describes."""
        try:
            name = self._models.resolve(model)[0].name
            return await self._renderer.traits(name, self._seconds)
        except (
            KeyError,
            RendererClosedError,
            RendererFullError,
            TemplateError,
            UnknownModelError,
        ):
            return None


async def no_traits(_: str) -> TemplateTraits | None:
    """Return that no template is known."""
    return None
