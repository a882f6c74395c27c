"""A chat and a chat template in the form that is sent to the rendering processes."""

from typing import Any

import msgspec


class Chat(msgspec.Struct, frozen=True):
    """The parts of a chat request that a template sees, checked, with defaults merged as in vLLM."""

    messages: list[dict[str, Any]]
    """As in the request; `prefixstore.chats.conversation` converts them for the template."""
    tools: list[dict[str, Any]] | None = None
    documents: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    kwargs: dict[str, Any] = {}
    """Further variables of the template; they override special tokens of the same name."""


class TemplateTraits(msgspec.Struct, frozen=True):
    """A template's behaviour in a few trial chats (`prefixstore.chats.traits`)."""

    wants_system_first: bool
    """It refuses a system message after other messages; vLLM then merges all of them into the first."""
    heeds_no_effort: bool
    """It writes another prompt for the reasoning effort `none` than for any other."""
    writes_calls_as_given: bool
    """It may write the fields of a tool's call in the order of the request, not in one of its own."""


class ModelTemplate(msgspec.Struct, frozen=True):
    """The sources of a model's chat templates, not compiled, and the texts that they may insert."""

    source: str | dict[str, str]
    """Jinja source, or several sources by name: `default`, and `tool_use` for chats with tools."""
    special_tokens: dict[str, str] = {}
    """Special tokens by the name of their template variable: `bos_token`, …"""
    placeholders: dict[str, str] = {}
    """Text in place of a medium (key `image`, `audio` or `video`) in templates whose contents
    are strings; `{i}` in it becomes the medium's number in the chat, from 1."""

    def texts(self) -> list[str]:
        """Return the Jinja source of every template."""
        return [self.source] if isinstance(self.source, str) else list(self.source.values())
