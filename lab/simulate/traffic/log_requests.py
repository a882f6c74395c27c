"""Makes requests of the lines of an access log or of Mooncake's traces. No text and no token is kept."""

from collections.abc import Iterable, Iterator
from typing import Annotated

import msgspec
import xxhash
from msgspec import Meta

from warmpath.indexer.keys.key import TOKEN_BYTES, Keyspace, chain, pack_tokens
from warmpath.lab.simulate.traffic.log_line import PROMPT_FIELDS, LogLine, Tokens, read_line
from warmpath.lab.simulate.traffic.requests import LoggedRequest, Name, chained, check_count
from warmpath.router.shadow.gateway_line import decoded

LOG_BLOCK = 16
"""Tokens per block of a log that does not give them: vLLM's default."""
CHARACTERS_PER_TOKEN = 4.0
"""Assumed for a log that has texts and not their numbers of tokens."""


class LogRequests:
    """Makes requests of lines; `lines` are all of them, to learn how long a token is."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines = lines
        self._ratio = 0.0
        self.block_size = 0
        """Tokens per block: those of the first request, which all others must have; 0 before it."""

    @property
    def is_approximate(self) -> bool:
        """Whether texts were cut into blocks by characters."""
        return self._ratio > 0

    def requests(self, raw: bytes) -> Iterator[LoggedRequest]:
        line = read_line(raw)
        if line is None:
            return
        if line.names is not None and line.block_size is None:
            raise ValueError("block_size is missing (tokens per block)")
        own_size = line.block_size or LOG_BLOCK
        size = self.block_size or own_size
        if own_size != size:
            raise ValueError(f"block_size is {own_size}, but {size} in earlier lines")
        if line.words and not self._ratio:
            self._ratio = _characters_per_token(self._lines)
        tokens, keys = _content(line, size, self._ratio)
        session = "" if line.session is None else str(line.session)
        answer = max(1, line.output_tokens or 0)
        took = line.request_time
        found = LoggedRequest(line.seconds - took, tokens, answer, keys, session, took=took)
        self.block_size = size
        yield found


def _characters_per_token(lines: Iterable[bytes]) -> float:
    """Return the mean characters per token of the texts with `input_tokens`, or the default."""
    characters = tokens = 0
    for raw in lines:
        try:
            line = read_line(raw)
        except ValueError:
            continue
        if line is not None and line.input_tokens and line.words:
            characters += len(line.words)
            tokens += line.input_tokens
    return characters / tokens if tokens else CHARACTERS_PER_TOKEN


def _content(line: LogLine, size: int, ratio: float) -> tuple[int, tuple[int, ...]]:
    """Return the number of tokens of a line's prompt, and the keys of its blocks."""
    root = Keyspace(line.model or "", size).root()
    names, words = line.names, line.words
    if names is not None:
        if not line.input_tokens:
            raise ValueError("input_tokens is missing or 0")
        check_count(line.prompts[0], len(names), line.input_tokens, size)
        return line.input_tokens, chained(root, names)
    if line.token_ids:
        packed = pack_tokens(line.token_ids)
        keys = chain(root, packed, size)
        rest = packed[len(keys) * size * TOKEN_BYTES :]
        if rest:
            keys.append(xxhash.xxh64_intdigest(rest, keys[-1] if keys else root))
        return len(line.token_ids), tuple(keys)
    if words:
        cut = max(1, round(size * ratio))
        pieces = [words[start : start + cut] for start in range(0, len(words), cut)]
        # The last piece is as full as its share of the characters.
        tokens = (len(pieces) - 1) * size + max(1, round(len(pieces[-1]) / cut * size))
        return tokens, chained(root, pieces)
    wanted = f"{', '.join(PROMPT_FIELDS[:-1])} or {PROMPT_FIELDS[-1]}"
    raise ValueError(f"one of {wanted} is needed, and must not be empty")


MOONCAKE_BLOCK = 512
"""Tokens per block of Mooncake's traces."""


class MooncakeLine(msgspec.Struct):
    """A line of Mooncake's traces."""

    timestamp: Annotated[float, Meta(ge=0)]
    """Arrival, in milliseconds."""
    input_length: Tokens
    output_length: Tokens
    hash_ids: list[int]
    session_id: Name | None = None
    delay: Annotated[float, Meta(ge=0)] | None = None
    """Milliseconds since the answer before of the same session."""


class MooncakeRequests:
    """Makes requests of the lines of a trace."""

    block_size = MOONCAKE_BLOCK
    is_approximate = False

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(MooncakeLine)

    def requests(self, raw: bytes) -> Iterator[LoggedRequest]:
        line = decoded(self._decoder, raw)
        tokens = max(1, line.input_length)
        check_count("hash_ids", len(line.hash_ids), tokens, MOONCAKE_BLOCK)
        keys = chained(0, line.hash_ids)
        session = "" if line.session_id is None else str(line.session_id)
        pause = None if line.delay is None else line.delay / 1000
        at, answer = line.timestamp / 1000, max(1, line.output_length)
        yield LoggedRequest(at, tokens, answer, keys, session, pause=pause)
