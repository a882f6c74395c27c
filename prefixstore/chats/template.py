"""A model's chat template: renders chats to text as the engine does.

`Conversation` converts messages to the engine's form and `JinjaTemplate` renders them as `transformers`
does; this module chooses one of a model's templates and sets its variables (vLLM 0.32,
`renderers/hf.py`, `safe_apply_chat_template`). Templates come from a model's folder, never from a
request.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from warmpath.prefixstore.chats.chat import Chat, ModelTemplate
from warmpath.prefixstore.chats.content_format import takes_parts
from warmpath.prefixstore.chats.conversation import Conversation
from warmpath.prefixstore.chats.jinja_template import JinjaTemplate, TemplateError

RESERVED = frozenset(
    (
        *("chat_template", "conversation", "conversations", "max_length", "messages", "padding"),
        *("return_assistant_tokens_mask", "return_dict", "return_tensors", "self", "tokenize"),
        *("sanitize_control_tokens", "tokenizer_kwargs", "tools", "truncation"),
    )
)
"""Names refused in `chat_template_kwargs`: the engine's own arguments to `apply_chat_template`."""


class ChatTemplate:
    """One model's templates. Those that write the date take it from `clock`."""

    def __init__(
        self,
        model: ModelTemplate,
        clock: Callable[[], datetime],
        max_output_bytes: int | None = None,
    ) -> None:
        """Compile the templates. Raises TemplateError."""
        named = {"default": model.source} if isinstance(model.source, str) else model.source
        self._templates = {name: JinjaTemplate(text, clock) for name, text in named.items()}
        if not self._templates.keys() & {"default", "tool_use"}:
            raise TemplateError("none of the chat templates is named default or tool_use")
        self._takes_parts = {name: takes_parts(one.tree) for name, one in self._templates.items()}
        self._for_developers = {
            name for name, text in named.items() if '"developer"' in text or "'developer'" in text
        }
        """The names of the templates that know the role of developers."""
        self.model = model
        self._max_output_bytes = max_output_bytes

    def render(self, chat: Chat) -> str:
        """Return a chat's text. Raises TemplateError, which names the field at fault if there is one."""
        if chat.continue_final_message and chat.add_generation_prompt:
            raise TemplateError(
                "must be false with add_generation_prompt", "continue_final_message"
            )
        name = self._choose(chat.tools)
        template = self._templates[name]
        talk = Conversation(parts=self._takes_parts[name], placeholders=self.model.placeholders)
        messages = talk.messages(chat.messages)
        if name not in self._for_developers:
            messages = _without_developers(messages)
        kwargs = {**self.model.special_tokens, **chat.kwargs}
        converted = replace(chat, messages=messages, kwargs=kwargs)
        return template.render(converted, self._max_output_bytes)

    def _choose(self, tools: Sequence[Mapping[str, Any]] | None) -> str:
        """Return the template's name, as `transformers`' `get_chat_template` chooses it."""
        if tools is not None and "tool_use" in self._templates:
            return "tool_use"
        if "default" not in self._templates:
            raise TemplateError("the model has a chat template for tools only", "tools")
        return "default"


def _without_developers(chat: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Turn developer messages into system messages, for templates without a developer role.

    All system messages are then joined into one at the front, as many templates demand.
    """
    if "developer" not in [message["role"] for message in chat]:
        return chat
    systems, others = [], []
    for message in chat:
        if message["role"] in ("developer", "system"):
            rest = {key: value for key, value in message.items() if key != "tools"}
            systems.append(
                {**rest, "role": "system"} if message["role"] == "developer" else message
            )
        else:
            others.append(message)
    if len(systems) == 1 and chat[0]["role"] in ("developer", "system"):
        return [*systems, *others]
    texts = [_text(message.get("content", "")) for message in systems]
    return [{"role": "system", "content": "\n\n".join(filter(None, texts))}, *others]


def _text(content: str | list[dict[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if "text" in part)
