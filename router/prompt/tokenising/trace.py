"""Records how a prompt became tokens, for callers that ask (`warmpath score --explain`)."""

from collections.abc import Callable

from prefixstore.pool import Tokens
from router.pb.warmpath.v1 import router_pb2 as pb


class Trace:
    """Records one prompt's steps; `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last = clock()
        self._steps: list[pb.Step] = []
        self._text = ""
        self._tokens: Tokens | None = None

    def step(self, name: str) -> None:
        """Record the end of a step that began when the last one ended."""
        now = self._clock()
        self._steps.append(pb.Step(name=name, seconds=now - self._last))
        self._last = now

    def tokenised(self, text: str, tokens: Tokens) -> None:
        """Record a text and its tokens; the text is empty if an engine rendered it."""
        self._text, self._tokens = text, tokens

    def explanation(self, ids: bytes) -> pb.Explanation:
        """Return the recorded explanation; `ids` are the prompt's tokens, packed."""
        explanation = pb.Explanation(text=self._text, token_ids_packed=ids, steps=self._steps)
        if self._tokens:
            explanation.stored_chars = min(self._tokens.stored_chars, len(self._text))
            explanation.stored_tokens = self._tokens.stored_tokens
            explanation.stored_keys = self._tokens.memo.stored_keys
            explanation.keys = self._tokens.memo.known_keys
        return explanation
