"""A prompt that was read, with its tokens."""

from collections.abc import Iterable
from typing import Literal

import msgspec
from msgspec.structs import replace

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
    """Estimated tokens of the part of the text that was not tokenised."""
    unread_because: str = ""
    form: Form = "ids"
    """The prompt's form in the request."""

    def apart(self, engines: Iterable[str]) -> TokenPrompt:
        """Return the prompt with the namespace that pods of these engines use.

        Engines other than SGLang ignore SGLang's own fields.
        """
        prompt = self.prompt
        if not (self.lora_path or prompt.extra_key):
            return prompt
        if "sglang" not in engines:
            return replace(prompt, extra_key="") if prompt.extra_key else prompt
        adapter = prompt.lora or self.lora_path
        return prompt if adapter == prompt.lora else replace(prompt, lora=adapter)
