"""The published chat templates with which the router renders chats in its own process.

Each was read: it loops over the messages, their parts and calls, and the tools, never over a number that
a request chooses. Within the limits here most chats take less than a millisecond, and the worst made up
less than 50 ms. A template that differs in one letter goes to a process (`prefixstore.chats.renderer`).

A line of published.txt has the SHA-256 of a template (`digest`), `all` or `toolless`, the family of
models and the place of publication. A toolless template is left to the processes for chats with tools:
it may write them once for each message, or indent them, which makes nested ones a hundred times as long.
"""

import hashlib
from pathlib import Path

import msgspec

from warmpath.prefixstore.chats.chat import Chat, ModelTemplate
from warmpath.prefixstore.chats.jinja_template import TemplateError
from warmpath.prefixstore.chats.render_process import now
from warmpath.prefixstore.chats.template import ChatTemplate

MOST_BYTES = 1 << 15
"""Largest chat that is rendered without a process, in bytes of MessagePack. A longer one takes this
process more time than the way to another."""
MOST_MESSAGES = 64
"""Most messages of such a chat: some templates look, from each message, at all that follow it."""
MOST_VARIABLE_BYTES = 1 << 10
"""Largest `kwargs` of such a chat, in bytes of MessagePack: templates search them for each message."""

TAKES_TOOLS = {
    line.split()[0]: line.split()[1] == "all"
    for line in Path(__file__).with_name("published.txt").read_text(encoding="utf-8").splitlines()
}
"""Whether a published template takes chats with tools, by its digest."""


class PublishedTemplate:
    """A model's published templates, compiled."""

    def __init__(self, template: ChatTemplate, *, takes_tools: bool) -> None:
        self.render = template.render
        self._takes_tools = takes_tools

    def takes(self, chat: Chat, size: int) -> bool:
        """Return whether a chat of `size` bytes may be rendered in this process."""
        return (
            size <= MOST_BYTES
            and len(chat.messages) <= MOST_MESSAGES
            and (self._takes_tools or chat.tools is None)
            and (not chat.kwargs or len(msgspec.msgpack.encode(chat.kwargs)) <= MOST_VARIABLE_BYTES)
        )


def published(template: ModelTemplate, max_output_bytes: int) -> PublishedTemplate | None:
    """Return a model's templates compiled, None unless all are published ones.

    Numbered placeholders are left to the processes: each is searched in the whole text.
    """
    found = [TAKES_TOOLS.get(digest(source)) for source in template.texts()]
    if None in found or any("{i}" in text for text in template.placeholders.values()):
        return None
    try:
        compiled = ChatTemplate(template, now, max_output_bytes)
    except TemplateError:
        return None  # e.g. none is for chats without tools; the process says so
    return PublishedTemplate(compiled, takes_tools=all(found))


def digest(source: str) -> str:
    """Return the SHA-256 of a template in UTF-8, without the space at its end, in hexadecimal."""
    return hashlib.sha256(source.rstrip().encode(errors="surrogatepass")).hexdigest()
