"""Records how a prompt became tokens, for callers that ask (`warmpath score --explain`)."""

import asyncio
from collections.abc import Callable, Sequence

from warmpath.prefixstore.pool import Tokens
from warmpath.prefixstore.tokenizers.tokenizer import Tokenizer
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb


class Trace:
    """Records one prompt's steps; `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last = clock()
        self._steps: list[pb.Step] = []
        self._text = ""
        self._tokens: Tokens | None = None
        self._ends: Sequence[int] = ()

    def step(self, name: str) -> None:
        """Record the end of a step that began when the last one ended."""
        now = self._clock()
        self._steps.append(pb.Step(name=name, seconds=now - self._last))
        self._last = now

    def tokenised(self, text: str, tokens: Tokens) -> None:
        """Record a text and its tokens; the text is empty if an engine rendered it."""
        self._text, self._tokens = text, tokens

    async def find_ends(self, tokenizer: Tokenizer) -> None:
        """Record where in the text each token ends, if `tokenizer` can tell."""
        tell = getattr(tokenizer, "token_ends", None)
        if tell and self._tokens and self._tokens.covered_chars == len(self._text):
            self._ends = await asyncio.to_thread(tell, self._text, self._tokens.ids)

    def explanation(self, ids: bytes) -> pb.Explanation:
        """Return the recorded explanation; `ids` are the prompt's tokens, packed."""
        explanation = pb.Explanation(text=self._text, token_ids_packed=ids, steps=self._steps)
        if self._tokens:
            explanation.stored_chars = min(self._tokens.stored_chars, len(self._text))
            explanation.stored_tokens = self._tokens.stored_tokens
            explanation.stored_keys = self._tokens.memo.stored_keys
            explanation.keys = self._tokens.memo.known_keys
            if ids == self._tokens.ids:
                explanation.token_ends.extend(self._ends)
        return explanation
