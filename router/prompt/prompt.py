"""A parsed prompt, as its request gives it, before it is tokenised."""

import msgspec

from warmpath.indexer.keys.extra import Item
from warmpath.router.prompt.bodies.openai import ChatBody, Text
from warmpath.router.prompt.limits import Truncation
from warmpath.router.prompt.models import Model
from warmpath.router.prompt.read_prompt import Form


class CheckedPrompt(msgspec.Struct, frozen=True):
    """A prompt that has passed all checks that need no tokenizer."""

    model: Model
    adapter: str
    """Empty for none."""
    field: str
    """The request's field that holds the content, for errors about it: `prompt.text`, say."""
    content: bytes | Text | ChatBody
    """Token ids (4 bytes each, little-endian: `pack_tokens`), a text or a chat."""
    cache_salt: str
    extra_key: str
    """SGLang's `extra_key`: requests with different ones share no cached blocks."""
    items: tuple[Item, ...]
    lora_path: str
    """The adapter that a body names in SGLang's field `lora_path`."""
    reads_cache: bool
    truncation: Truncation | None

    @property
    def form(self) -> Form:
        """The kind of its content, whichever field it came in."""
        match self.content:
            case bytes():
                return "ids"
            case Text():
                return "text"
            case ChatBody():
                return "chat"
