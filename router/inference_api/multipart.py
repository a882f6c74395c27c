"""Finds the model's name in a form, the body of requests with a file: audio, images."""

import re

MODEL = re.compile(rb'; ?name="?model"?[ \t]*\r?\n(?:[^\r\n]+\r?\n)*+\r?\n([^\r\n]{1,1024})\r?\n--')


def form_model(body: bytes) -> str:
    """Return the form's field `model`; empty if it has none."""
    found = MODEL.search(body)
    return found.group(1).decode(errors="replace") if found else ""
