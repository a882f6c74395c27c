"""The place where the bodies of two prompts begin to differ, in words without any part of a prompt."""

from bisect import bisect_left
from typing import Any

import msgspec

from warmpath.prefixstore.chats.conversation import BILLING_HEADER
from warmpath.process.bytes import UNREADABLE
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb

BEFORE = ("cache_salt", "tools", "documents", "chat_template_kwargs", "system")
"""The fields that templates write before the messages, or that keep prompts apart."""
NAMES = ("role", "content", "text", "type", "name", "function", "tool_calls", "arguments")
"""The fields that are told; others may be words of a prompt."""
ROLES = ("system", "developer", "user", "assistant", "tool")
MOST_DEPTH = 8
BY_TEMPLATE = "the bodies are alike there, so the chat template itself writes it"


def place_of(before: pb.Prompt, after: pb.Prompt) -> str:
    """Return where a prompt's body differs from the earlier one's, up to the end of that.

    Empty if neither has a text.
    """
    if before.HasField("text") and after.HasField("text"):
        return _difference(before.text, after.text, "in the text")
    for form in ("chat_body", "completions_body"):
        if before.HasField(form) and after.HasField(form):
            try:
                one, other = (msgspec.json.decode(getattr(of, form)) for of in (before, after))
            except UNREADABLE:
                return ""
            return _of_bodies(one, other)
    return ""


def _of_bodies(one: dict[str, Any], other: dict[str, Any]) -> str:
    for name in BEFORE:
        if one.get(name) != other.get(name):
            return _difference(one.get(name), other.get(name), f"in {name}")
    if isinstance(one.get("prompt"), str):
        return _difference(one["prompt"], other.get("prompt"), "in prompt")
    if "messages" not in one:
        return ""
    for at, (was, now) in enumerate(zip(one["messages"], other["messages"], strict=False)):
        role = f" (role {now['role']})" if now["role"] in ROLES else ""
        if found := _difference(was, now, f"in messages[{at}]{role}"):
            return found
    return BY_TEMPLATE


def _difference(one: Any, other: Any, path: str, depth: int = 0) -> str:
    """Return the path to the first difference, and its character in a text; empty if there is none."""
    if type(one) is not type(other) or depth == MOST_DEPTH:
        return path if one != other else ""
    if isinstance(one, str):
        was, now = _read(one), _read(other)
        if was == now:
            return ""
        most = min(len(was), len(now))
        at = bisect_left(range(most), True, key=lambda at: was[: at + 1] != now[: at + 1])
        return f"{path}, character {len(other) - len(now) + at:,}"
    if isinstance(one, list):
        for at, pair in enumerate(zip(one, other, strict=False)):
            if found := _difference(*pair, f"{path}[{at}]", depth + 1):
                return found
        return f"{path}[{min(len(one), len(other))}]" if len(one) != len(other) else ""
    if isinstance(one, dict):
        for name in NAMES:
            if found := _difference(one.get(name), other.get(name), f"{path}.{name}", depth + 1):
                return found
        # Clients move this mark to the newest messages, and no template writes it.
        return path if _unmarked(one) != _unmarked(other) else ""
    return path if one != other else ""


def _read(text: str) -> str:
    """Return a text without the line that engines strip."""
    return text.partition("\n")[2] if text.startswith(BILLING_HEADER) else text


def _unmarked(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: fields[name] for name in fields if name not in (*NAMES, "cache_control")}
