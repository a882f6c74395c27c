"""Compares the tokens that the router makes of a text and a chat with those of an engine.

Both are fixed and say nothing of anybody; no token is shown.
"""

import json
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from warmpath.cli.deployment.ask import Answer
from warmpath.cli.deployment.check import Check, Placed
from warmpath.client.failure import CallError
from warmpath.client.prompt import Prompt
from warmpath.client.sync_client import Client
from warmpath.indexer.keys.key import pack_tokens, unpack_tokens
from warmpath.router.config.schema import ModelSpec

TEXT = (
    "A deployment is checked.\n\nNaïve cafés serve 1,234.5 cups — \tfive at a time; 日本語 too. 🙂\n"
    "def f(x):\n    return x  # 007\n"
)
"""Words, numbers, spaces, signs beyond ASCII and code: tokenizers differ in these."""
CHAT = [
    {"role": "system", "content": "You are a check."},
    {"role": "user", "content": TEXT},
    {"role": "assistant", "content": "Fine."},
    {"role": "user", "content": "Again?"},
]
Form = Literal["text", "chat"]
FORMS: Mapping[Form, str] = {"text": "tokenizer", "chat": "chat template"}
"""The forms of the prompt, and what makes tokens of each."""


class Ours(NamedTuple):
    """The router's tokens of one form; `problem` says why there are none."""

    ids: bytes = b""
    problem: str = ""
    is_down: bool = False
    """Whether the problem is the tokenizer's or the template's."""


def body(model: str, form: Form) -> dict[str, Any]:
    """Return the body of an engine's /tokenize."""
    content = {"prompt": TEXT} if form == "text" else {"messages": CHAT}
    return {"model": model, **content}


def ask_router(client: Client, model: str, form: Form) -> Ours:
    """Return the router's own tokens."""
    prompt = Prompt(text=TEXT, model=model)
    if form == "chat":
        chat = {"model": model, "messages": CHAT}
        prompt = Prompt(chat_body=json.dumps(chat).encode(), model=model)
    try:
        explained = client.score(prompt, explain=True).explanation
    except CallError as error:
        is_down = error.code.name in ("UNAVAILABLE", "INTERNAL", "DEADLINE_EXCEEDED")
        return Ours(problem=error.message, is_down=is_down)
    return Ours(explained.token_ids_packed)


def tokenizer(model: ModelSpec, ours: Mapping[Form, Ours]) -> list[Check]:
    """Return whether the router can tokenise texts and chats of a model, where it is to do so."""
    source, checks = _source(model), []
    for form, one in ours.items() if source else ():
        subject, name = f"model {model.name}", FORMS[form]
        if one.is_down:
            checks.append(Check(subject, name, "WRONG", one.problem, source))
        elif one.problem:
            checks.append(Check(subject, name, "not known", one.problem))
        else:
            checks.append(Check(subject, name, "ok", f"makes tokens of a {form}"))
    return checks


def compare(pod: Placed, model: ModelSpec, form: Form, ours: Ours, answer: Answer) -> Check | None:
    """Return whether an engine makes the router's tokens; None if the router makes none."""
    name = FORMS[form]
    if not _source(model) or ours.problem:
        return None
    value = answer.json()
    ids = value.get("tokens") if isinstance(value, dict) else None
    try:
        theirs = pack_tokens(ids if isinstance(ids, list) else [])
    except (ValueError, TypeError, OverflowError):
        theirs = b""
    if not theirs:
        said = answer.problem or f"/tokenize answers {answer.status} without tokens of a {form}"
        return pod.unknown(name, said)
    if theirs == ours.ids:
        return pod.ok(name, f"a {form} has the router's {len(theirs) // 4} tokens")
    change = _source(model)
    if form == "chat":
        change = f"the template in the folder of {change}, or the engine's --chat-template"
    text = f"the {form} of this check has {_difference(ours.ids, theirs)}"
    return pod.wrong(name, text, change)


def _difference(ours: bytes, theirs: bytes) -> str:
    mine, other = unpack_tokens(ours), unpack_tokens(theirs)
    pairs = zip(mine, other, strict=False)
    at = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(mine), len(other)))
    return f"{len(other)} tokens there and {len(mine)} here; token {at} is the first to differ"


def _source(model: ModelSpec) -> str:
    table = f"models ({model.name})"
    if model.tokenizer:
        return f"{table}.tokenizer = {json.dumps(model.tokenizer)}"
    if model.hub.repo:
        return f"{table}.hub.repo = {json.dumps(model.hub.repo)}"
    return f"{table}.tokenizer-urls" if model.tokenizer_urls else ""
