"""A renderer that renders in the caller's thread."""

from collections.abc import Callable
from datetime import datetime

from warmpath.prefixstore.chats.chat import Chat, ModelTemplate, TemplateTraits
from warmpath.prefixstore.chats.template import ChatTemplate
from warmpath.prefixstore.chats.traits import traits_of
from warmpath.prefixstore.waiting import ClosedError


class InlineRenderer:
    """Renders in the caller's thread, with no limit of time or memory."""

    def __init__(self, *, clock: Callable[[], datetime], max_output_bytes: int) -> None:
        self._clock = clock
        self._max_output_bytes = max_output_bytes
        self._templates: dict[str, ChatTemplate] = {}
        self._closed = False

    def register(self, template_id: str, template: ModelTemplate) -> None:
        self._templates[template_id] = ChatTemplate(template, self._clock, self._max_output_bytes)

    def knows(self, template_id: str) -> bool:
        return template_id in self._templates

    async def render(self, template_id: str, chat: Chat, timeout: float | None) -> str:  # noqa: ARG002  it never waits
        if self._closed:
            raise ClosedError("the renderer is closed")
        return self._templates[template_id].render(chat)

    async def traits(self, template_id: str, timeout: float | None) -> TemplateTraits:  # noqa: ARG002  it never waits
        return traits_of(self._templates[template_id])

    async def close(self) -> None:
        self._closed = True
