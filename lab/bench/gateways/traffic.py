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
from warmpath.lab.demo.setting import TRACE
from warmpath.lab.local.workload import TRACE_BLOCK, open_gzipped, read_trace, spread

SESSIONS = Path(__file__).with_name("agent-sessions.jsonl.gz")
SESSION_BLOCK = 64
RATE = 1.6
"""Requests a second, at which four pods of the usual preset are busy half of the time."""
SHARED = 0.75
"""Share of its tools and system prompt with which a session begins like others that have the same."""
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


def conversations(texts: Texts, seconds: float, path: Path = TRACE) -> list[Sent]:
    """Return whole conversations of a trace, their times scaled to `seconds`, RATE requests a second.

    All requests of a conversation have the same second block; the first one opens every request.
    """
    trace = read_trace(path)
    times = spread(trace)
    share = max(1, round(len(trace) / (RATE * seconds)))
    chosen = [
        (time, one)
        for time, one in zip(times, trace, strict=True)
        if random.Random(repr(one.hash_ids[:2])).randrange(share) == 0
    ]
    scale = seconds / max(times[-1], 1e-9)
    return [
        Sent(
            "", time * scale,
            _body(texts.of(one.hash_ids, TRACE_BLOCK, one.input_length), one.output_length),
        )
        for time, one in chosen
    ]  # fmt: skip


def sessions(texts: Texts, seconds: float, path: Path = SESSIONS) -> Iterator[Sent]:
    """Yield the requests of sessions, each of which begins within the first half of `seconds`.

    A session ends when its pauses alone last beyond `seconds`.
    """
    with open_gzipped(path) as file:
        lines = [json.loads(line) for line in file]
    for number, line in enumerate(lines):
        at = end = number / len(lines) * seconds / 2
        like = (line["model"], line["tool_tokens"], line["system_tokens"])
        alike = int(SHARED * (line["tool_tokens"] + line["system_tokens"])) // SESSION_BLOCK
        for turn, one in enumerate(line["requests"]):
            pause = float(one["pause"] or 0)
            end += pause if turn else 0
            if end > seconds:
                break
            ids = [first + step for first, count in one["blocks"] for step in range(count)]
            blocks = [
                (like, place) if place < alike else (line["session"], block)
                for place, block in enumerate(ids)
            ]
            text = texts.of(blocks, SESSION_BLOCK, one["in"])
            yield Sent(line["session"], pause if turn else at, _body(text, one["out"]))


def _body(text: str, tokens: int) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(chat_of(text, min(max(tokens, 1), MOST_OUTPUT), stream=True))
    return {**body, "stream_options": {"include_usage": True}}
