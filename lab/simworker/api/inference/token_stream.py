"""Tokens on their way from the engine to the handler that answers."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from warmpath.lab.simworker.server.flight import Sink


class Piece(NamedTuple):
    """New tokens of one choice, with the reason if they are its last."""

    choice: int
    tokens: list[int]
    finish_reason: str | None


class TokenStream:
    """Streams each choice's tokens: first and last at once, others `interval` or more at a time."""

    def __init__(self, choices: int, interval: int) -> None:
        self._interval = interval
        self._tokens: list[list[int]] = [[] for _ in range(choices)]
        self._begun = [False] * choices
        self._ended: list[str | None] = [None] * choices
        self._ready: dict[int, None] = {}
        """Choices with tokens to send, in the order in which they got them."""
        self._open = choices
        self._news = asyncio.Event()

    def sink(self, choice: int) -> Sink:
        """Return the function that takes a choice's tokens."""

        def take(tokens: list[int], finish_reason: str | None) -> None:
            waiting = self._tokens[choice]
            waiting += tokens
            self._ended[choice] = finish_reason
            enough = not self._begun[choice] or len(waiting) >= self._interval
            if enough or finish_reason is not None:
                self._ready[choice] = None
                self._news.set()

        return take

    async def pieces(self) -> AsyncIterator[Piece]:
        """Yield pieces until every choice has ended."""
        while self._open:
            await self._news.wait()
            self._news.clear()
            while self._ready:
                choice = next(iter(self._ready))
                del self._ready[choice]
                tokens, self._tokens[choice] = self._tokens[choice], []
                self._begun[choice] = True
                reason = self._ended[choice]
                self._open -= reason is not None
                yield Piece(choice, tokens, reason)

    async def whole(self) -> Sequence[Piece]:
        """Wait until every choice has ended; return one piece for each, in order."""
        tokens: list[list[int]] = [[] for _ in self._tokens]
        async for piece in self.pieces():
            tokens[piece.choice] += piece.tokens
        return [Piece(at, one, self._ended[at]) for at, one in enumerate(tokens)]
