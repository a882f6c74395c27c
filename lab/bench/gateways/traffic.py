"""Recorded traffic as requests with texts: conversations at their times, sessions in a closed loop.

The traces have lengths and block ids only, so a block's text is drawn from the tokenizer's words by its
id: equal beginnings of prompts are equal texts.
"""

import json
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from warmpath.lab.bench.gateways.load import chat_of
from warmpath.lab.demo.traffic import CHATS, SESSIONS, agents, chats
from warmpath.lab.simulate.traffic.requests import LoggedRequest

RATE = 1.6
"""Requests a second, at which four pods of the usual preset are busy half of the time."""
MOST_OUTPUT = 100
"""Tokens of the longest answers: longer ones are cut, as what is measured is the time to the first."""
WORD = re.compile("Ġ[a-z]{2,9}")


class Sent(NamedTuple):
    """A request of a trace."""

    session: str
    """Requests of one session follow each other's answers; empty: it is sent at its time."""
    at: float
    """Seconds from the start, or, for all but the first of a session, after the answer before."""
    body: dict[str, Any]


class Texts:
    """Makes texts of block ids."""

    def __init__(self, tokenizer: Path) -> None:
        """Take the words of a tokenizer's folder that are one token each."""
        model = json.loads((tokenizer / "tokenizer.json").read_bytes())["model"]
        self._words = sorted(one[1:] for one in model["vocab"] if WORD.fullmatch(one))

    def of(self, blocks: Sequence[object], size: int, tokens: int) -> str:
        """Return a text of about `tokens` tokens; each block, known by its id, has `size` of them."""
        words: list[str] = []
        for one in blocks:
            words += random.Random(repr(one)).choices(self._words, k=size)
        return " ".join(words[:tokens])


def conversations(texts: Texts, seconds: float, path: Path = CHATS) -> list[Sent]:
    """Return conversations of a trace, their times scaled to `seconds`, RATE requests a second."""
    part = chats(path, requests=round(RATE * seconds), span=seconds, most_output=MOST_OUTPUT)
    return [Sent("", one.at, _body(texts, one, part.block_size)) for one in part.requests]


def sessions(texts: Texts, seconds: float, path: Path = SESSIONS) -> Iterator[Sent]:
    """Yield the requests of sessions, each of which begins within the first half of `seconds`.

    A session ends when its pauses alone last beyond `seconds`. Sub-agents are left out.
    """
    part = agents(path, span=seconds, most_output=MOST_OUTPUT, longest_pause=seconds)
    for session in part.sessions:
        end = 0.0
        for turn, one in enumerate(session.threads[0].requests):
            at = one.pause or 0.0 if turn else one.at
            end += at
            if end > seconds:
                break
            yield Sent(session.name, at, _body(texts, one, part.block_size))


def _body(texts: Texts, one: LoggedRequest, block_size: int) -> dict[str, Any]:
    text = texts.of(one.keys, block_size, one.prompt_tokens)
    body: dict[str, Any] = json.loads(chat_of(text, one.output_tokens, stream=True))
    return {**body, "stream_options": {"include_usage": True}}
