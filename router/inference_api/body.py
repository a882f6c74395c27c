"""A request's JSON body, read field by field, and the contract of the APIs that read it."""

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec

from warmpath.prefixstore.chats.chat import TemplateTraits
from warmpath.process.loop import in_turns
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.inference_api.request import not_allowed, text_of
from warmpath.router.prompt.bodies.fields import FieldError, RawFields
from warmpath.router.prompt.limits import MOST_NAME_BYTES, PromptLimits
from warmpath.router.prompt.truncate import CHARS_PER_TOKEN

MEDIA = frozenset(
    ("data", "url", "image_url", "file_data", "image_data", "audio_data", "video_data")
)
"""Names of fields with media, whose number of tokens does not depend on their length."""
VALUES_AT_ONCE = 2048


class Body(RawFields, frozen=True):
    """A body that is a JSON object; only the fields that its API names are known."""

    raw: bytes
    limits: PromptLimits
    engine_of: Callable[[str], str]
    """Returns the kind of engine that serves a model: vllm, sglang or trtllm; empty if not known."""
    traits_of: Callable[[str], Awaitable[TemplateTraits | None]]
    """Returns the traits of a model's template, as `request.traits_of` does."""

    async def name(self, name: str) -> str:
        """Return a field that is a name; empty if it is missing, too long or no string."""
        value = await self.value(self.fields[name], name) if name in self.fields else ""
        fits = isinstance(value, str) and len(value.encode()) <= MOST_NAME_BYTES
        return value if fits else ""

    async def word(self, name: str) -> str:
        """Return a text field on which the cached blocks depend; empty if it is missing.

        Raises UnreadError if it is no string or too long, and FieldError as `decoded` does.
        """
        value = text_of({name: await self.decoded(name)}, name) or ""
        if len(value.encode()) > MOST_NAME_BYTES:
            raise not_allowed(f"{name} is longer than {MOST_NAME_BYTES} bytes")
        return value

    async def estimate(self, names: tuple[str, ...]) -> int:
        """Return about how many tokens some fields have; a number counts as a token."""
        characters = tokens = 0
        for name in names:
            try:
                value = await self.decoded(name)
            except FieldError:
                # Too many values for one decoding: token ids, most likely.
                characters += memoryview(self.fields[name]).nbytes
                continue
            async for one in in_turns(_leaves({name: value}), VALUES_AT_ONCE):
                if isinstance(one, str):
                    characters += len(one)
                else:
                    tokens += 1
        return tokens + -(-characters // CHARS_PER_TOKEN)


class Api(msgspec.Struct, frozen=True):
    """An API whose requests are JSON objects; some of them have a prompt for a pick."""

    fields: tuple[str, ...]
    """The fields of a body that `prompt` reads, `model` aside."""
    prompt: Callable[[Body], Awaitable[pb.Prompt]]
    """Returns the prompt. Raises UnreadError and FieldError."""
    has_ids: bool = False
    """Whether the prompt may be token ids, each of which is a value of the body."""
    parsed: tuple[str, ...] = ()
    """The fields that the prompt's parser reads of the body, if that is the prompt; `fields` and `model`
    are among them."""
    makes_chat: bool = False
    """Whether engines make a chat of the body, whose tokens may not be known."""


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
