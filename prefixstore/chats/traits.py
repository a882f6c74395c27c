"""Finds a chat template's traits with trial chats, as vLLM does when it starts.

Follows vLLM 0.32, `entrypoints/anthropic/serving.py` (`_detect_merge_inline_system`,
`_probe_disabled_thinking_effort`).
"""

from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox

from warmpath.prefixstore.chats.chat import Chat, TemplateTraits
from warmpath.prefixstore.chats.jinja_template import RenderLimitError, TemplateError
from warmpath.prefixstore.chats.template import ChatTemplate

EFFORTS = ("low", "medium", "high", "xhigh", "max")
SYSTEM = {"role": "system", "content": "t"}
USER = {"role": "user", "content": "t"}
MOST_CHARACTERS = 1 << 20
"""Most characters that a template may write for the short messages of a trial."""
NAME, VALUE = "warmpathname", "warmpathvalue"


def traits_of(template: ChatTemplate) -> TemplateTraits:
    """Return the traits of a compiled template. Raises RenderLimitError if a trial exceeds a limit."""
    return TemplateTraits(
        wants_system_first=any(map(_wants_system_first, template.model.texts())),
        heeds_no_effort=_heeds_no_effort(template),
        writes_calls_as_given=_writes_calls_as_given(template),
    )


def _wants_system_first(source: str) -> bool:
    # The engine's environment here, unlike that for prompts, has no functions for templates: one that
    # calls `strftime_now` counts as refusing too.
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    given = {"messages": [SYSTEM, USER, SYSTEM, USER], "add_generation_prompt": False}
    written = 0
    try:
        for piece in environment.from_string(source).generate(given):
            written += len(piece)
            if written > MOST_CHARACTERS:
                break
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001  a template raises whatever its values' methods raise
        return True
    if written > MOST_CHARACTERS:
        raise RenderLimitError("the chat template writes too much for four short messages")
    return False


def _heeds_no_effort(template: ChatTemplate) -> bool:
    none = _rendered(template, _with_effort("none"))
    others = [_rendered(template, _with_effort(effort)) for effort in EFFORTS]
    return none is not None and none not in others


def _with_effort(effort: str) -> Chat:
    kwargs = {"reasoning_effort": effort, "enable_thinking": effort != "none"}
    return Chat([{"role": "user", "content": "Hi"}], kwargs=kwargs)


def _writes_calls_as_given(template: ChatTemplate) -> bool:
    """Return whether a call's value is written before its name, twice, or not at all."""
    for turns in (1, 2):
        text = _rendered(template, Chat([USER, *_calls(turns), USER]))
        if text is None:
            return True
        for turn in range(turns):
            name, value = f"{NAME}{turn}", f"{VALUE}{turn}"
            if value not in text:
                continue
            if text.count(value) > 1 or not 0 <= text.find(name) < text.find(value):
                return True
    return False


def _calls(turns: int) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for turn in range(turns):
        function = {"name": f"{NAME}{turn}", "arguments": {"key": f"{VALUE}{turn}"}}
        # Some templates take only ids of nine characters.
        call = {"id": f"call0000{turn}", "type": "function", "function": function}
        messages += [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": "t"},
        ]
    return messages


def _rendered(template: ChatTemplate, chat: Chat) -> str | None:
    try:
        return template.render(chat)
    except RenderLimitError:
        raise
    except TemplateError:
        return None
