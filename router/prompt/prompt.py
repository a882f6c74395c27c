"""A prompt as its request gives it: the one value that stands for it once the request is parsed."""

from typing import Literal

import msgspec

from indexer.keys.extra import Item
from router.prompt.body import ChatBody, Text
from router.prompt.models import Model
from router.prompt.truncate import Truncation

Form = Literal["ids", "text", "chat"]


class Prompt(msgspec.Struct, frozen=True):
    """A prompt that was checked as far as no tokenizer is needed."""

    model: Model
    adapter: str
    """Empty for none."""
    field: str
    """The request's field that holds the content, for errors about it: `prompt.text`, say."""
    content: bytes | Text | ChatBody
    """Packed token ids, a text or a chat."""
    cache_salt: str
    extra_key: str
    """SGLang's: it keeps requests with different ones apart."""
    items: tuple[Item, ...]
    lora_path: str
    """The adapter that a body names as SGLang takes it."""
    reads_cache: bool
    truncation: Truncation | None

    @property
    def form(self) -> Form:
        """What its content is, in whichever field it came."""
        match self.content:
            case bytes():
                return "ids"
            case Text():
                return "text"
            case ChatBody():
                return "chat"
