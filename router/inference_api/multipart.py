"""Finds the model's name in a form, the body of requests with a file: audio, images."""

import re

MOST_SEARCHED_BYTES = 64 << 10
"""Most bytes at each end of a form that are searched for the model's field; a file lies between."""

MODEL = re.compile(
    rb'; ?name="?model"?[ \t]*\r?\n(?:[^\r\n]{1,256}+\r?\n){0,8}+\r?\n([^\r\n]{1,1024})\r?\n--'
)
"""The field's header, with up to 8 further lines, and its value."""


def form_model(body: bytes) -> str:
    """Return the form's field `model`; empty if it has none."""
    most = MOST_SEARCHED_BYTES
    found = MODEL.search(body[:most]) or MODEL.search(body[max(most, len(body) - most) :])
    return found.group(1).decode(errors="replace") if found else ""
