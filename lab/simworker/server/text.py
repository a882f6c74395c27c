"""Text and chats to token ids and back, for workers with a tokenizer.

Templates run as `transformers` 5.23 runs them (`utils/chat_template_utils.py`): in Jinja's immutable
sandbox, with trimmed blocks, and JSON not escaped, its keys in their order. Templates get tools and tool
calls in the form of vLLM 0.32 (`entrypoints/openai/chat_completion/protocol.py`).
"""

import json
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import compress
from pathlib import Path
from typing import Any, NoReturn

import jinja2.sandbox
import tokenizers


class TextError(Exception):
    """A text or chat cannot be tokenised."""


NO_TOKENIZER = "this worker has no tokenizer: send token ids, or start it with --tokenizer"


class TextCodec:
    """Turns text into token ids and back. Without a tokenizer it takes and returns token ids only."""

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Return a completion prompt's ids; with `special`, special tokens are added."""
        del text, special
        raise TextError(NO_TOKENIZER)

    def render(self, messages: Sequence[dict[str, Any]], body: dict[str, Any]) -> list[int]:
        """Return the ids of a chat, rendered with the options in its request's `body`."""
        del messages, body
        raise TextError("this worker has no tokenizer, hence no chats: start it with --tokenizer")

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of generated ids; here a word for each, `t` and its number."""
        return "".join(f" t{token}" for token in ids)

    def detokenize(self, ids: Sequence[int]) -> str:
        """Return the exact text of ids, special tokens included."""
        del ids
        raise TextError(NO_TOKENIZER)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return each id's piece as the vocabulary has it."""
        del ids
        raise TextError(NO_TOKENIZER)


class FolderText(TextCodec):
    """The tokenizer and chat template of a model's folder."""

    def __init__(self, folder: Path, clock: Callable[[], datetime] = datetime.now) -> None:
        """Load a folder; `clock` is for templates that write the date.

        Raises OSError, or ValueError naming the file at fault.
        """
        self._tokenizer = _tokenizer(folder / "tokenizer.json")
        config = _object(folder / "tokenizer_config.json")
        path = folder / "chat_template.jinja"
        source = path.read_text("utf-8") if path.exists() else config.get("chat_template")
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda format: clock().strftime(format)  # noqa: A006
        try:
            self._template = environment.from_string(source) if isinstance(source, str) else None
            self._knows_developers = re.search("""["']developer["']""", str(source)) is not None
        except jinja2.TemplateError as error:
            raise ValueError(f"{folder}: the chat template is not valid: {error}") from error
        self._special = {
            name: token
            for name, value in config.items()
            if name.endswith("_token") and isinstance(token := _content(value), str)
        }
        self.vocab_size = self._tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=special).ids

    def render(self, messages: Sequence[dict[str, Any]], body: dict[str, Any]) -> list[int]:
        if self._template is None:
            raise TextError("the tokenizer has no chat template")
        try:
            text = self._template.render(
                messages=self._messages(messages),
                tools=_tools(body.get("tools")),
                add_generation_prompt=body.get("add_generation_prompt", True),
                **self._special,
                **_template_kwargs(body),
            )
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise TextError(f"the chat template cannot render this: {error}") from error
        special = body.get("add_special_tokens") is True
        return self._tokenizer.encode(text, add_special_tokens=special).ids

    def _messages(self, given: Sequence[Any]) -> list[Any]:
        """Return messages as the engine gives them to the template.

        For a template without the role `developer`, its and the system's texts become one message.
        """
        messages = [_message(message) for message in given]
        roles = [message.get("role") for message in messages if isinstance(message, dict)]
        if self._knows_developers or "developer" not in roles:
            return messages
        is_system = [role in ("system", "developer") for role in roles]
        texts = [one["content"] for one in compress(messages, is_system) if one.get("content")]
        others = [one for one, is_one in zip(messages, is_system, strict=True) if not is_one]
        return [{"role": "system", "content": "\n\n".join(texts)}, *others]

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=True)

    def detokenize(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self._tokenizer.id_to_token(token) or "" for token in ids]


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


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


def _template_kwargs(body: dict[str, Any]) -> dict[str, Any]:
    """Return the template's variables that a body sets; `reasoning_effort` sets two, as in vLLM."""
    given = {
        name: value
        for name, value in (body.get("chat_template_kwargs") or {}).items()
        if value not in (None, "auto")
    }
    effort = body.get("reasoning_effort")
    if effort is None:
        return given
    return {"enable_thinking": effort != "none"} | given | {"reasoning_effort": effort}


def _tools(tools: Any) -> list[dict[str, Any]] | None:
    """Return tools with the fields that the engine knows, in its order. Raises TextError.

    Return None for None: the request has no tools.
    """
    if tools is None:
        return None
    if not isinstance(tools, list) or not tools:
        raise TextError("tools: a list of at least one tool is needed")
    return [_tool(tool, f"tools[{at}]") for at, tool in enumerate(tools)]


def _tool(tool: Any, field: str) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise TextError(f"{field}: an object with a function, which has a name, is needed")
    deferred = tool.get("defer_loading")
    inner = {name: function.get(name) for name in ("name", "description", "parameters")}
    # Unlike the fields above, these two are left out if they are not set.
    set_later = {"defer_loading": deferred} | function
    inner |= {
        name: value
        for name in ("strict", "defer_loading")
        if (value := set_later.get(name)) is not None
    }
    outer = {"type": tool.get("type", "function"), "function": inner}
    return outer if deferred is None else outer | {"defer_loading": deferred}


def _message(message: Any) -> Any:
    """Return a message with its tool calls in the form that the engine gives to templates."""
    if not isinstance(message, dict) or "tool_calls" not in message:
        return message
    calls = message["tool_calls"]
    kept = {name: value for name, value in message.items() if name != "tool_calls"}
    if message.get("role") != "assistant" or not isinstance(calls, list) or not calls:
        return kept
    return kept | {"tool_calls": [_tool_call(call) for call in calls]}


def _tool_call(call: Any) -> Any:
    """Return a call with its declared fields first, and with its arguments as an object."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        arguments = {}
    if not isinstance(arguments, dict):
        arguments = {}
    function = _first(("arguments", "name"), {**function, "arguments": arguments})
    return _first(("id", "function", "type"), {**call, "function": function})


def _first(names: Sequence[str], fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields, those called `names` first and in this order."""
    return {name: fields[name] for name in names if name in fields} | fields


def _tokenizer(path: Path) -> tokenizers.Tokenizer:
    text = path.read_text(encoding="utf-8")
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:
        # The library raises nothing more specific.
        raise ValueError(f"{path}: {error}") from error


def _object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}: is not a JSON object")  # noqa: TRY004  a wrong file, no wrong argument
    return value


def _content(token: Any) -> Any:
    """Return a special token's text; `token` is the text or an object that holds it."""
    return token.get("content") if isinstance(token, dict) else token
