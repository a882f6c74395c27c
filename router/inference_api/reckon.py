"""Estimates the tokens of a prompt that cannot be read, by the length of its texts."""

from collections.abc import Iterator
from typing import Any

from warmpath.process.loop import in_turns
from warmpath.router.inference_api.body import Body
from warmpath.router.prompt.bodies.json_strings import FieldError
from warmpath.router.prompt.tokenise import CHARS_PER_TOKEN

MEDIA = frozenset(
    ("data", "url", "image_url", "file_data", "image_data", "audio_data", "video_data")
)
"""Names of values whose number of tokens does not depend on their length."""
VALUES_AT_ONCE = 2048


async def reckon(body: Body, names: tuple[str, ...]) -> int:
    """Return about how many tokens some fields have; a number counts as a token."""
    characters = tokens = 0
    for name in names:
        try:
            value = await body.value(name)
        except FieldError:
            # Too many values for one decoding: token ids, most likely.
            characters += memoryview(body.fields.fields[name]).nbytes
            continue
        async for one in in_turns(_leaves({name: value}), VALUES_AT_ONCE):
            if isinstance(one, str):
                characters += len(one)
            else:
                tokens += 1
    return tokens + -(-characters // CHARS_PER_TOKEN)


def _leaves(value: Any) -> Iterator[str | int | float]:
    """Yield the texts and numbers within a value, those that stand for media aside."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            left += [inner for key, inner in one.items() if key not in MEDIA]
        elif isinstance(one, list):
            left += one
        elif isinstance(one, str | int | float):
            yield one
