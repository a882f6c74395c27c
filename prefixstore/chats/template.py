"""A model's chat template: renders chats to text as the engine does.

`Conversation` converts messages to the engine's form and `JinjaTemplate` renders them as `transformers`
does; this module chooses one of a model's templates and sets its variables (vLLM 0.32,
`renderers/hf.py`, `safe_apply_chat_template`). Templates come from a model's folder, never from a
request.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import nodes
from msgspec.structs import replace

from warmpath.prefixstore.chats.chat import Chat, ModelTemplate
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


def takes_parts(tree: nodes.Template) -> bool:
    """Return whether a template loops over the parts of a message's content: it expects a list of these.

    Follows vLLM 0.32, `renderers/hf.py` (`_detect_content_format`), step by step. Where vLLM's search
    fails, as on a loop with several targets, vLLM and this function assume a string.
    """
    try:
        return _loops_over_content(tree)
    except _NotAPlainNameError:
        return False


class _NotAPlainNameError(Exception):
    """An assignment or loop has a target other than a plain name, where vLLM's assertion fails."""


def _loops_over_content(tree: nodes.Template) -> bool:
    messages = _message_names(tree)
    given = _content_parameters(tree, messages)
    in_macros = {id(loop) for macro in tree.find_all(nodes.Macro) for loop in _loops(macro)}
    for loop in _loops(tree):
        iterated = loop.iter
        if any(_reads(iterated, name, "content") for name in messages):
            _target(loop.target)
            return True
        if not isinstance(iterated, nodes.Name):
            continue
        outside = id(loop) not in in_macros and iterated.name == "content"
        if outside or iterated.name in given.get(id(loop), ()):
            _target(loop.target)
            return True
    return False


def _loops(tree: nodes.Node) -> Iterator[nodes.For]:
    return tree.find_all(nodes.For)


def _message_names(tree: nodes.Template) -> list[str]:
    lists = ["messages"]
    pending = deque(lists)
    while pending:
        name = pending.popleft()
        for assign in tree.find_all(nodes.Assign):
            if _reads(assign.node, name):
                target = _target(assign.target)
                lists.append(target)
                # vLLM guards against a name that is assigned to itself. Two names assigned to each
                # other would keep it busy for ever; here each is followed once.
                if target not in lists[:-1]:
                    pending.append(target)
    return [
        _target(loop.target)
        for loop in _loops(tree)
        if any(_reads(loop.iter, name) for name in lists)
    ]


def _content_parameters(tree: nodes.Template, messages: list[str]) -> dict[int, set[str]]:
    """Return, by the `id` of each loop in a macro, the macro's parameters that receive a content."""

    def is_content(node: nodes.Node) -> bool:
        return any(_reads(node, name, "content") for name in messages)

    found: dict[int, set[str]] = {}
    for macro in tree.find_all(nodes.Macro):
        names = [argument.name for argument in macro.args]
        given: set[str] = set()
        for call in tree.find_all(nodes.Call):
            if not isinstance(call.node, nodes.Name) or call.node.name != macro.name:
                continue
            given.update(
                name for name, value in zip(names, call.args, strict=False) if is_content(value)
            )
            given.update(
                pair.key for pair in call.kwargs if pair.key in names and is_content(pair.value)
            )
        if given:
            found.update((id(loop), given) for loop in _loops(macro))
    return found


def _reads(node: nodes.Node | None, name: str, key: str | None = None) -> bool:
    """Return whether an expression reads variable `name`, or its item `key`, filtered or sliced."""
    if isinstance(node, nodes.Filter | nodes.Test):
        return _reads(node.node, name, key)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        return _reads(node.node, name, key)
    if key is None:
        return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name
    if isinstance(node, nodes.Getitem):
        at = node.arg
        return _reads_plainly(node.node, name) and isinstance(at, nodes.Const) and at.value == key
    if isinstance(node, nodes.Getattr):
        return _reads_plainly(node.node, name) and node.attr == key
    return False


def _reads_plainly(node: nodes.Node, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name


def _target(node: nodes.Node) -> str:
    if not isinstance(node, nodes.Name):
        raise _NotAPlainNameError
    return node.name
