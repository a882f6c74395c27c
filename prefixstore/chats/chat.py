"""A chat, and a template to render it with, as they travel between processes."""

from typing import Any

import msgspec


class Chat(msgspec.Struct, frozen=True):
    """What a chat request gives a template, already checked and merged as the engine merges it."""

    messages: list[dict[str, Any]]
    """As the request wrote them; a template's own form is `prefixstore.chats.conversation`'s work."""
    tools: list[dict[str, Any]] | None = None
    documents: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    kwargs: dict[str, Any] = {}
    """Further variables of the template; they go before its special tokens."""


class ModelTemplate(msgspec.Struct, frozen=True):
    """A model's template, not compiled."""

    source: str | dict[str, str]
    """Jinja; or several by name, of which `default` and, where tools are given, `tool_use` serve."""
    special_tokens: dict[str, str] = {}
    """By the variable that a template knows each as: `bos_token`, …"""
    placeholders: dict[str, str] = {}
    """Text that stands for a medium in templates that take text, by `image`, `audio` and `video`;
    `{i}` in it is the medium's number, from 1."""

    def texts(self) -> list[str]:
        """Return the template, or all of them."""
        return [self.source] if isinstance(self.source, str) else list(self.source.values())
