"""The contract of a chat renderer.

Services use `ProcessRenderer` (`prefixstore.chats.process_renderer`): a template is a program, and only
a process can be killed.
"""

from typing import Protocol

from warmpath.prefixstore.chats.chat import Chat, ModelTemplate, TemplateTraits
from warmpath.prefixstore.chats.template import TemplateError


class RendererFullError(Exception):
    """A chat is refused because too many chats, or too large ones, wait to be rendered."""


class RendererClosedError(Exception):
    """The renderer was closed."""


class BrokenTemplateError(TemplateError):
    """A template cannot be compiled: no chat can be rendered with it."""


class RenderTimeoutError(TemplateError):
    """A rendering took longer than its limit or the caller's timeout."""


class RenderCrashedError(TemplateError):
    """The process that rendered this chat has ended, or none could be started for it."""


class Renderer(Protocol):
    """Renders chats with templates that are registered under ids."""

    def register(self, template_id: str, template: ModelTemplate) -> None:
        """Register a template; it replaces an earlier one with the same id.

        For a broken template either this or the first chat raises TemplateError.
        """

    def knows(self, template_id: str) -> bool:
        """Return whether a template is registered under this id."""

    async def render(self, template_id: str, chat: Chat, timeout: float | None) -> str:
        """Return a chat's text, waiting at most `timeout` seconds; None: without a limit.

        Raises TemplateError if the template cannot render it, RendererFullError,
        RendererClosedError, and KeyError for an unknown template.
        """

    async def traits(self, template_id: str, timeout: float | None) -> TemplateTraits:
        """Return a template's traits, found with trial chats; raises the errors of `render`."""

    async def close(self) -> None:
        """Refuse new chats and end the renderings that run."""
