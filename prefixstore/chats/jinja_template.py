"""One Jinja template, rendered as `transformers` renders it.

Follows `transformers` 5.23, `utils/chat_template_utils.py` (`_compile_jinja_template` and
`render_jinja_template`): Jinja's immutable sandbox, blocks trimmed, loop controls, the `generation`
block, `raise_exception`, `strftime_now`, a `dict` and a `namespace` without access to the
interpreter, and a `tojson` that does not escape HTML. All values are plain JSON.
"""

import json
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox
import jinja2.utils

from warmpath.prefixstore.chats.chat import Chat

CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "
"""Marks the end of the message to be continued, so that it is found in the rendered text."""

REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
"""Field names under which requests send a message's reasoning; templates read the first two."""

OF_DICTS = frozenset(dir(dict))
"""Names that a template finds in an object before the keys of the object."""

HARMLESS = {
    str: {name for name in dir(str) if name[0] != "_" and not name.startswith("format")},
    jinja2.runtime.LoopContext: {
        name for name in dir(jinja2.runtime.LoopContext) if name[0] != "_"
    },
}
"""Attributes that the sandbox gives out as they are, by the type of the value."""

REASON_CHARS = 500
"""Longest excerpt of a template's own error message, which may repeat the prompt."""


class TemplateError(Exception):
    """A template is broken, or refuses or cannot render this chat.

    `field` names the field of the chat at fault, as in `messages[0].content`; empty if there is none.
    """

    def __init__(self, problem: str, field: str = "") -> None:
        super().__init__(f"{field}: {problem}" if field else problem)
        self.problem = problem
        self.field = field


class RenderLimitError(TemplateError):
    """A rendering exceeds its limit of output or memory."""


def check_syntax(source: str) -> None:
    """Raise TemplateError for a source that is not a Jinja template.

    The source is parsed and not compiled: compiling computes constant expressions, however large.
    """
    try:
        _environment(lambda: datetime.now(UTC)).parse(source)
    except (jinja2.TemplateError, RecursionError, ValueError) as error:
        raise TemplateError(f"the chat template is broken: {_reason(error)}") from error


class JinjaTemplate:
    """A compiled template. Templates that write the date take it from `clock`."""

    def __init__(self, source: str, clock: Callable[[], datetime]) -> None:
        """Compile a template. Raises TemplateError."""
        environment = _environment(clock)
        try:
            self.tree = environment.parse(source)
            self._template = environment.from_string(source)
            # Each rendering copies it, and Jinja's own form of it, a ChainMap, slowly.
            self._template.globals = dict(self._template.globals)
        except (jinja2.TemplateError, RecursionError, ValueError) as error:
            raise TemplateError(f"the chat template is broken: {_reason(error)}") from error
        self.source = source

    def render(self, chat: Chat, max_output_bytes: int | None = None) -> str:
        """Return a chat's text. Raises TemplateError, and RenderLimitError past `max_output_bytes`."""
        messages = [_with_reasoning(message) for message in chat.messages]
        final = self._tag(messages) if chat.continue_final_message else ""
        given = {
            **chat.kwargs,
            "messages": messages,
            "tools": chat.tools,
            "documents": chat.documents,
            "add_generation_prompt": chat.add_generation_prompt,
        }
        pieces, size, most = [], 0, math.inf if max_output_bytes is None else max_output_bytes
        try:
            for piece in self._template.root_render_func(self._template.new_context(given)):
                size += len(piece)
                if size > most:
                    _stop(most)
                pieces.append(piece)
            text = "".join(pieces)
        except RenderLimitError:
            raise
        except MemoryError as error:
            raise RenderLimitError(
                "the chat template needs more memory than it may take"
            ) from error
        # A template can call methods of its values, and so raise whatever they raise.
        except Exception as error:
            raise TemplateError(
                f"the chat template cannot render this: {_reason(error)}"
            ) from error
        if chat.continue_final_message:
            text = _up_to_tag(text, final)
        try:
            size = len(text.encode())
        except UnicodeEncodeError as error:
            raise TemplateError(
                f"the text is not Unicode: a lone surrogate at character {error.start}"
            ) from error
        if size > most:
            _stop(most)
        return text

    def _tag(self, chat: list[dict[str, Any]]) -> str:
        """Append CONTINUE_TAG to the last message's content; return that content without it."""
        field = f"messages[{len(chat) - 1}].content"
        if not chat:
            raise TemplateError("continue_final_message needs a message to continue", "messages")
        content = chat[-1].get("content")
        if content is None:
            raise TemplateError("is missing; continue_final_message continues it", field)
        if "content" not in self.source:
            raise TemplateError("is not read by the chat template", field)
        if isinstance(content, list):
            parts = [dict(part) if isinstance(part, dict) else part for part in content]
            for part in reversed(parts):
                if isinstance(part, dict) and "text" in part:
                    final = part["text"]
                    if not isinstance(final, str):
                        raise TemplateError("does not end in a text to continue", field)
                    part["text"] = final + CONTINUE_TAG
                    chat[-1]["content"] = parts
                    return final
            raise TemplateError("has no text to continue", field)
        if not isinstance(content, str):
            raise TemplateError("is not a text to continue", field)
        chat[-1]["content"] = content + CONTINUE_TAG
        return content


def _up_to_tag(text: str, final: str) -> str:
    tag = CONTINUE_TAG.strip()
    if final.strip() not in text or tag not in text:
        raise TemplateError("continue_final_message: the template does not write the last message")
    at = text.rindex(tag)
    if text.startswith(CONTINUE_TAG, at):
        return text[:at]
    # The template has stripped the tag's space, so it strips contents: the text ends without space.
    return text[:at].rstrip()


def _with_reasoning(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with its reasoning as `thinking` and `reasoning_content`, for templates."""
    for field in REASONING_FIELDS:
        reasoning = message.get(field)
        if reasoning is not None:
            return {"thinking": reasoning, **message, "reasoning_content": reasoning}
    return dict(message)


def _stop(most: float) -> NoReturn:
    raise RenderLimitError(f"the chat template writes more than {most} bytes")


def _reason(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "it nests too deeply"
    reason = str(error) or type(error).__name__
    return reason if len(reason) <= REASON_CHARS else reason[:REASON_CHARS] + "…"


class _Generation(jinja2.ext.Extension):
    """The `generation` block, which marks an assistant's text; it is rendered as plain text."""

    tags = {"generation"}  # noqa: RUF012  as Jinja declares it

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_written")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    @staticmethod
    def _written(caller: Callable[[], str]) -> str:
        return caller()


class _Dict:
    """`dict` with `fromkeys` as its only attribute."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    @staticmethod
    def fromkeys(*args: Any) -> dict[Any, Any]:
        """Return a dict in which all keys have one value."""
        return dict.fromkeys(*args)


class _Namespace(jinja2.utils.Namespace):
    """A namespace that refuses names that begin with an underscore: they could reach the interpreter."""

    # `self` has no parameter name, so that a template can write `namespace(self=1)`.
    def __init__(*args: Any, **kwargs: Any) -> None:
        self, rest = args[0], args[1:]
        values = dict(*rest, **kwargs)
        for name in values:
            _check_name(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(
            f"a namespace's attribute begins with an underscore: {name!r}"
        )


class _Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The sandbox, with a short way to the values that it never refuses."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        kind = type(obj)
        if kind is dict and attribute not in OF_DICTS:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if attribute in HARMLESS.get(kind, ()):
            return getattr(obj, attribute)
        if kind is _Namespace and attribute[:1] != "_":
            found = getattr(obj, attribute, None)
            if type(found) in (str, bool, int):
                return found
        return super().getattr(obj, attribute)


def _environment(clock: Callable[[], datetime]) -> jinja2.Environment:
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda format: clock().strftime(format)  # noqa: A006
    environment.globals["dict"] = _Dict()
    environment.globals["namespace"] = _Namespace
    return environment


def _tojson(
    x: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
