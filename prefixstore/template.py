"""Chat templates: messages to text, as the engine renders them.

The environment is the one that `transformers` gives a template (`utils/chat_template_utils.py`):
Jinja's immutable sandbox, blocks trimmed, loop controls, `raise_exception`, `strftime_now`, and a
`tojson` that leaves text as it is. Templates come from a model's folder, never from a request.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.sandbox


class TemplateError(Exception):
    """A template is broken, or refuses or cannot render these messages."""


class ChatTemplate:
    """One model's template. `clock` tells the time for templates that write the date."""

    def __init__(
        self, source: str, special_tokens: Mapping[str, str], clock: Callable[[], datetime]
    ) -> None:
        """Compile a template. Raises TemplateError."""
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: clock().strftime(form)
        try:
            self._template = environment.from_string(source)
            self._takes_parts = _iterates_content(environment.parse(source))
        except jinja2.TemplateError as error:
            raise TemplateError(f"the chat template is broken: {error}") from error
        self._special_tokens = dict(special_tokens)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """Render messages. Raises TemplateError."""
        plain = [self._message(message) for message in messages]
        try:
            text = self._template.render(
                messages=plain,
                tools=tools,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
                **(kwargs or {}),
            )
        except (jinja2.TemplateError, TypeError, ValueError, OverflowError) as error:
            raise TemplateError(f"the chat template cannot render this: {error}") from error
        return _up_to_final(text, plain) if continue_final_message else text

    def _message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Bring a message's content into the form that the template takes.

        A template that does not iterate over contents takes text; the engine then joins the text
        parts with line ends (`vllm/entrypoints/chat_utils.py`, content format "string").
        """
        content = message.get("content")
        if not isinstance(content, list):
            return dict(message)
        texts = []
        for part in content:
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            if kind != "text" or not isinstance(part.get("text"), str):
                raise TemplateError(f"content parts of type {kind!r} are not supported")
            texts.append(part["text"])
        return {**message, "content": content if self._takes_parts else "\n".join(texts)}


def _iterates_content(tree: jinja2.nodes.Template) -> bool:
    """Whether a template loops over some message's content."""
    for loop in tree.find_all(jinja2.nodes.For):
        node = loop.iter
        if isinstance(node, jinja2.nodes.Getattr) and node.attr == "content":
            return True
        if isinstance(node, jinja2.nodes.Getitem):
            key = node.arg
            if isinstance(key, jinja2.nodes.Const) and key.value == "content":
                return True
    return False


def _up_to_final(text: str, messages: Sequence[Mapping[str, Any]]) -> str:
    """Cut what the template writes after the last message's content."""
    final = str(messages[-1].get("content") or "").strip()
    at = text.rfind(final)
    if not final or at < 0:
        raise TemplateError("continue_final_message: the template does not write the last message")
    return text[: at + len(final)]


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
