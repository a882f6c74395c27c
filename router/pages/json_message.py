"""Makes a request's message of JSON, in protobuf's own mapping. No I/O here.

Protobuf's library makes objects of all values first, and looks through each text in one step that no
other thread can interrupt. `router.pages.json_calls` bounds the values of a body; here the prompt's
text, the only text that may be long, is set aside until the message is made.
"""

import json
from typing import Any

from google.protobuf import json_format

MOST_TEXT = 64 << 10
"""Most characters of a text that is not the prompt's. No name of a request may have as many."""
TEXT = "text"
"""The field of the prompt's text; no other message of a request has a field of that name."""
LONG = frozenset({
    "chat_body", "chatBody", "completions_body", "completionsBody", "token_ids_packed", "tokenIdsPacked",
})  # fmt: skip
"""The fields with the prompt's other forms, in base64."""

FAULTS = (ValueError, TypeError, AttributeError, OverflowError, RecursionError)
"""What the libraries raise for bytes that are no request, beside protobuf's own error."""


class NoRequestError(Exception):
    """A body is not a method's request as JSON."""


def message_of(body: bytes, kind: type[Any]) -> Any:
    """Return the message of `kind` that a body holds. Raises NoRequestError if it holds none."""
    objects = _Objects()
    try:
        value = json.loads(body.decode() or "{}", object_pairs_hook=objects.take)
        message = json_format.ParseDict(value, kind())
        if objects.text is not None:
            message.prompt.text = objects.text
    except (*FAULTS, json_format.ParseError) as error:
        raise NoRequestError(str(error)) from None
    return message


class _Objects:
    """Makes the objects of a body."""

    def __init__(self) -> None:
        self.text: str | None = None

    def take(self, members: list[tuple[str, Any]]) -> dict[str, Any]:
        """Return an object without the prompt's text. Raises ValueError."""
        made: dict[str, Any] = {}
        for name, value in members:
            if name in made:
                raise ValueError(f"duplicate key {name[:MOST_TEXT]}")
            made[name] = value
            if name in LONG or (name == TEXT and isinstance(value, str)):
                continue
            for one in value if isinstance(value, list) else (value,):
                if isinstance(one, str) and len(one) > MOST_TEXT:
                    raise ValueError(f"{name}: has more than {MOST_TEXT} characters")
        if isinstance(made.get(TEXT), str):
            # An empty one stays, so that an object without such a field is refused.
            self.text, made[TEXT] = made[TEXT], ""
        return made
