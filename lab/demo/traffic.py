"""The demo's traffic: agents' sessions and chats, with token ids for the engines.

Recorded traffic has lengths and keys of blocks only. Token ids are derived from the keys, so prefixes
and lengths are the recorded ones.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from random import Random
from sys import maxsize
from typing import NamedTuple

import msgspec
import numpy as np

from warmpath.lab.local.cluster import MODEL, VOCAB_SIZE
from warmpath.lab.simulate.run import pooled, spread
from warmpath.lab.simulate.traffic.access_log import read_traffic
from warmpath.lab.simulate.traffic.requests import LoggedRequest
from warmpath.lab.simulate.traffic.sessions import Session, Thread, sessions_of
from warmpath.lab.simworker.presets import DEFAULT_PRESET, PRESETS

CHATS = Path(__file__).with_name("conversation-slice.jsonl.gz")
SESSIONS = Path(__file__).with_name("agent-sessions.jsonl.gz")
RESERVED = 16
"""Number of lowest token ids that no prompt has, like a model's special tokens."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request, encoded before the clock starts."""

    session: str
    """The name of its session; empty: none."""
    packed: bytes
    """The prompt's token ids, packed as for Pick."""
    body: bytes
    prompt_tokens: int


class Part(NamedTuple):
    """Sessions whose prompts have blocks of one size; a chat's request is a session of its own."""

    sessions: Sequence[Session]
    block_size: int

    @property
    def requests(self) -> list[LoggedRequest]:
        """The requests, in the order of a closed loop of these sessions."""
        threads = (thread.requests for one in self.sessions for thread in one.threads)
        return [*chain.from_iterable(threads)]


def agents(
    path: Path, *, count: int = 0, span: float, most_output: int, longest_pause: float
) -> Part:
    """Return the first `count` sessions (0: all), which begin evenly within half of `span` seconds.

    Answers are cut to `most_output` tokens, and pauses to `longest_pause` seconds. Raises OSError and
    ValueError.
    """
    traffic = read_traffic(path)
    requests = [_cut(one, most_output) for one in traffic.requests]
    found = sessions_of(requests, traffic.block_size, longest_pause)[: count or None]
    gap = span / 2 / len(found)
    return Part([_from(one, gap * at) for at, one in enumerate(found)], traffic.block_size)


def _from(session: Session, at: float) -> Session:
    own, *others = session.threads
    first, *further = own.requests
    return replace(
        session, threads=[replace(own, requests=[replace(first, at=at), *further]), *others]
    )


def chats(path: Path, *, requests: int, span: float, most_output: int) -> Part:
    """Return so many requests of a trace (0: all), their times scaled to `span` seconds.

    Whole conversations are chosen by chance, always the same ones; requests of one begin with the same
    two blocks. A stretch of the trace would cut conversations. Answers are cut to `most_output` tokens.
    Raises OSError and ValueError.
    """
    traffic = read_traffic(path)
    conversations: dict[tuple[int, ...], list[LoggedRequest]] = {}
    for one in spread(traffic.requests):
        conversations.setdefault(one.keys[:2], []).append(one)
    shuffled = Random(0).sample([*conversations.values()], len(conversations))
    chosen = [*chain.from_iterable(shuffled)][: requests or None]
    found = sorted(chosen, key=lambda one: one.at)
    begun, length = found[0].at, max(found[-1].at - found[0].at, 1e-9)
    threads = (
        Thread([replace(_cut(one, most_output), at=(one.at - begun) / length * span)])
        for one in found
    )
    return Part([Session("", [thread]) for thread in threads], traffic.block_size)


def _cut(request: LoggedRequest, most_output: int) -> LoggedRequest:
    return replace(request, output_tokens=min(request.output_tokens, most_output))


def prepare(part: Part) -> Iterator[Prepared]:
    """Yield the requests encoded for the engines, in the order of a closed loop of the sessions."""
    for one in part.requests:
        blocks = b"".join(block_tokens(key, part.block_size) for key in one.keys)
        tokens = np.frombuffer(blocks, np.uint32)[: one.prompt_tokens]
        body = {
            "model": MODEL,
            "prompt": tokens.tolist(),
            "max_tokens": one.output_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        yield Prepared(one.session, tokens.tobytes(), msgspec.json.encode(body), len(tokens))


def block_tokens(key: int, size: int) -> bytes:
    """Return the packed token ids of a block, derived from its key."""
    raw = hashlib.shake_128(key.to_bytes(8, "little")).digest(2 * size)
    ids = np.frombuffer(raw, np.uint16).astype(np.uint32) % (VOCAB_SIZE - RESERVED) + RESERVED
    return ids.astype(np.uint32).tobytes()


def ceiling(parts: Iterable[Part]) -> float:
    """Return the token hit ratio of one cache that never evicts: no router can do better."""
    found = total = 0.0
    for part in parts:
        tokens = sum(one.prompt_tokens for one in part.requests)
        ratio, _ = pooled(part.requests, maxsize, part.block_size, PRESETS[DEFAULT_PRESET])
        found, total = found + ratio * tokens, total + tokens
    return found / total
