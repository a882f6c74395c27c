"""The contract of a chat renderer, and a simple implementation that renders in the caller's thread.

Services use `ProcessRenderer` (`prefixstore.chats.process_renderer`): a template is a program, and only
a process can be killed.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from warmpath.prefixstore.chats.chat import Chat, ModelTemplate, TemplateTraits
from warmpath.prefixstore.chats.template import ChatTemplate, TemplateError
from warmpath.prefixstore.chats.traits import traits_of


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


class InlineRenderer:
    """Renders in the caller's thread, with no limit of time or memory."""

    def __init__(self, *, clock: Callable[[], datetime], max_output_bytes: int) -> None:
        self._clock = clock
        self._max_output_bytes = max_output_bytes
        self._templates: dict[str, ChatTemplate] = {}
        self._closed = False

    def register(self, template_id: str, template: ModelTemplate) -> None:
        """Compile a template."""
        self._templates[template_id] = ChatTemplate.compile(
            template, self._clock, self._max_output_bytes
        )

    def knows(self, template_id: str) -> bool:
        """Return whether a template is registered under this id."""
        return template_id in self._templates

    async def render(self, template_id: str, chat: Chat, timeout: float | None) -> str:  # noqa: ARG002  it never waits
        """Return a chat's text."""
        if self._closed:
            raise RendererClosedError("the renderer is closed")
        return self._templates[template_id].render_chat(chat)

    async def traits(self, template_id: str, timeout: float | None) -> TemplateTraits:  # noqa: ARG002  it never waits
        """Return a template's traits."""
        return traits_of(self._templates[template_id])

    async def close(self) -> None:
        """Refuse new chats."""
        self._closed = True
