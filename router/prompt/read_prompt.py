"""A prompt that was read, with its tokens."""

from typing import Literal

import msgspec

from warmpath.router.prompt.token_prompt import TokenPrompt

Form = Literal["ids", "text", "chat"]
"""The form in which a request gives its prompt."""


class ReadPrompt(msgspec.Struct, frozen=True):
    """A prompt with its tokens."""

    prompt: TokenPrompt
    covered_chars: int
    """Characters of the text that the tokens cover; 0 for token ids, and for a chat that the engine
    rendered."""
    lora_path: str = ""
    """The adapter that a body names in SGLang's field `lora_path`."""
    unread: int = 0
    """Reckoned tokens of the part of the text that was not tokenised."""
    unread_because: str = ""
    form: Form = "ids"
    """The prompt's form in the request."""
