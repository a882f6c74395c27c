"""Finds the traits of a model's chat template, by any name of the model."""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from warmpath.prefixstore.chats.chat import TemplateTraits
from warmpath.prefixstore.chats.renderer import Renderer, RendererClosedError, RendererFullError
from warmpath.prefixstore.chats.template import TemplateError
from warmpath.router.prompt.models import ModelTable, UnknownModelError

TraitsOf: TypeAlias = Callable[[str], Awaitable[TemplateTraits | None]]
"""Returns the traits of a model's template; None if there is none, or if it cannot be tried out now."""


class ModelTraits:
    """Asks the renderer, waiting at most `seconds`."""

    def __init__(self, models: ModelTable, renderer: Renderer, seconds: float) -> None:
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
