"""A request's JSON body, read field by field."""

from typing import Any

import msgspec

from warmpath.router.inference_api.request import TraitsOf, no_traits, not_allowed, text_of
from warmpath.router.prompt.bodies.fields import RawFields
from warmpath.router.prompt.limits import MOST_NAME_BYTES, PromptLimits


class Body(msgspec.Struct, frozen=True):
    """A body that is a JSON object; only the fields that its API names are known."""

    raw: bytes
    fields: RawFields
    limits: PromptLimits
    engine: str = ""
    """The kind of engine that serves the model: vllm, sglang or trtllm; empty if not known."""
    traits_of: TraitsOf = no_traits

    def has(self, name: str) -> bool:
        """Return whether a field is given and not null."""
        raw = self.fields.fields.get(name)
        return raw is not None and bytes(memoryview(raw)[:5]) != b"null"

    def is_list(self, name: str) -> bool:
        """Return whether a field is a list."""
        raw = self.fields.fields.get(name)
        return raw is not None and bytes(memoryview(raw)[:1]) == b"["

    async def value(self, name: str) -> Any:
        """Return a field's value; None if it is missing. Raises FieldError if it cannot be decoded."""
        return await self.fields.decoded(name) if name in self.fields.fields else None

    async def name(self, name: str) -> str:
        """Return a field that is a name; empty if it is missing, too long or no string."""
        value = await self.value(name)
        fits = isinstance(value, str) and len(value.encode()) <= MOST_NAME_BYTES
        return value if fits else ""

    async def word(self, name: str) -> str:
        """Return a text field on which the cached blocks depend; empty if it is missing.

        Raises UnreadError if it is no string or too long, and FieldError as `value` does.
        """
        value = text_of({name: await self.value(name)}, name) or ""
        if len(value.encode()) > MOST_NAME_BYTES:
            raise not_allowed(f"{name} is longer than {MOST_NAME_BYTES} bytes")
        return value
