"""Prompts whose tokens a test knows."""

from collections.abc import Sequence
from typing import Any

from warmpath.indexer.keys.key import pack_tokens
from warmpath.router.prompt.reader import ReadPrompt
from warmpath.router.prompt.token_prompt import TokenPrompt


class ReadyPrompts:
    """Reads each prompt as the token ids `ids`, whatever it says."""

    def __init__(self) -> None:
        self.ids: Sequence[int] = ()

    async def read(self, message: Any, _: float) -> ReadPrompt:
        return ReadPrompt(TokenPrompt(message.model, pack_tokens(self.ids)), 0)
