"""Rendering chats: a contract, and the simple one that renders on the spot.

`ProcessRenderer` (`prefixstore.chats.process_renderer`) is what serves: a template is a program, and
only a process can be ended.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from prefixstore.chats.chat import Chat, ModelTemplate
from prefixstore.chats.template import ChatTemplate, TemplateError


class RendererFullError(Exception):
    """So much waits to be rendered that no more is taken."""


class RendererClosedError(Exception):
    """The renderer takes nothing any more."""


class BrokenTemplateError(TemplateError):
    """A template cannot be compiled: no chat can be rendered with it."""


class RenderTimeoutError(TemplateError):
    """A rendering was not ready in time."""


class RenderCrashedError(TemplateError):
    """The process that rendered this ended; others are not affected."""


class Renderer(Protocol):
    """Renders chats with templates it knows by id."""

    def register(self, template_id: str, template: ModelTemplate) -> None:
        """Make a template known, in the place of what had its id.

        Raises TemplateError for one that is broken, or the first chat does.
        """

    def knows(self, template_id: str) -> bool:
        """Whether a template has this id."""

    async def render(self, template_id: str, chat: Chat, timeout: float | None) -> str:
        """Return a chat's text, waiting at most `timeout` seconds.

        Raises TemplateError where the template cannot render it, RendererFullError,
        RendererClosedError, and KeyError for an unknown template.
        """

    async def close(self) -> None:
        """Take nothing more and end what is being rendered."""


class InlineRenderer:
    """Renders on the spot: neither time nor memory is bounded."""

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
        """Whether a template has this id."""
        return template_id in self._templates

    async def render(self, template_id: str, chat: Chat, timeout: float | None) -> str:  # noqa: ARG002  nothing is waited for
        """Return a chat's text."""
        if self._closed:
            raise RendererClosedError("the renderer is closed")
        return self._templates[template_id].render_chat(chat)

    async def close(self) -> None:
        """Take nothing more."""
        self._closed = True
