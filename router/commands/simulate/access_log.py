"""Reads traffic to simulate: Mooncake's traces, and users' own access logs.

A file has one JSON object per line, gzipped or not. `docs/simulate.md` describes the two formats; the
first line's fields decide which one it is. The blocks of a line become chained keys, so that equal keys
mean equal prefixes. No text and no token is kept.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import IO, Annotated, Any, TypeVar

import msgspec
import xxhash
from msgspec import Meta

from indexer.keys.key import Keyspace, chain
from indexer.keys.token import TOKEN_BYTES, pack_tokens
from indexer.keys.word import pack_words
from indexer.unreadable import UNREADABLE
from router.commands.gzipped import DAMAGED, open_gzipped
from router.commands.simulate import bad_line
from router.commands.simulate.gateway_line import read_body

MOONCAKE_BLOCK = 512
"""Tokens per block of Mooncake's traces."""
LOG_BLOCK = 16
"""Tokens per block of a log that does not give them: vLLM's default."""
CHARACTERS_PER_TOKEN = 4.0
"""Assumed ratio for a log with texts and without their numbers of tokens."""
MOST_LINE_BYTES = 64 << 20
MOST_BLOCKS = 50_000_000
"""The most blocks of all requests together; a block takes some 100 bytes."""

WANTED = (
    "A line needs timestamp, output_tokens and a prompt, or timestamp, request_body and response_bytes "
    "as nginx or Envoy can log them: docs/simulate.md#access-logs has their settings"
)

PROMPT_FIELDS = ("prompt_hashes", "hash_ids", "token_ids", "text", "prompt", "messages")
"""The fields with a prompt; a line of a log has exactly one of them."""


Tokens = Annotated[int, Meta(ge=0, le=10_000_000)]
Name = int | str


class MooncakeLine(msgspec.Struct):
    """A line of Mooncake's traces (`../shared/traces/README.md`)."""

    timestamp: Annotated[float, Meta(ge=0)]
    """Milliseconds."""
    input_length: Tokens
    output_length: Tokens
    hash_ids: list[int]


class LogLine(msgspec.Struct):
    """A line of an access log; further fields are ignored."""

    timestamp: float | str
    """Seconds, or ISO 8601."""
    output_tokens: Tokens | None = None
    response_bytes: Annotated[int, Meta(ge=0)] | None = None
    """Of the answer, in place of its tokens; only with `request_body`."""
    request_body: str | None = None
    """An inference request as a gateway logs it, in place of its prompt and model."""
    input_tokens: Tokens | None = None
    block_size: Annotated[int, Meta(ge=1, le=65_536)] | None = None
    """Tokens per block; None for `LOG_BLOCK`."""
    prompt_hashes: list[Name] | None = None
    hash_ids: list[Name] | None = None
    token_ids: list[Annotated[int, Meta(ge=0, lt=2**32)]] | None = None
    text: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    session: Name | None = None
    model: str | None = None

    @property
    def names(self) -> list[Name] | None:
        """The names of the prompt's blocks; None if the line has none."""
        return self.hash_ids if self.prompt_hashes is None else self.prompt_hashes

    @property
    def words(self) -> str | None:
        """The prompt's text; None if the line has none."""
        if self.messages is not None:
            return "".join(_spoken(message) for message in self.messages)
        return self.prompt if self.text is None else self.text


def _spoken(message: dict[str, Any]) -> str:
    content = message.get("content")
    if not isinstance(content, str):
        content = msgspec.json.encode(content).decode()
    return f"{message.get('role')}\n{content}\n"


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One request."""

    at: float
    """Arrival in seconds; only differences between requests count."""
    prompt_tokens: int
    output_tokens: int
    keys: tuple[int, ...]
    """A 64-bit key for each block, the last one included even if it is not full."""
    session: str = ""
    """The session's id in the log."""
    affinity: str = ""
    """The session's id, or a guess (`with_affinity`); empty before it is made."""

    @property
    def packed_keys(self) -> bytes:
        """The keys in the packed form of the index."""
        return pack_words(self.keys)

    @property
    def block_hashes(self) -> list[bytes]:
        """The keys as block hashes of simulated engines, whose events have them as integers."""
        return [key.to_bytes(8, "big") for key in self.keys]


@dataclass(frozen=True, slots=True)
class LoggedTraffic:
    """Requests in the order of their arrival."""

    requests: Sequence[LoggedRequest]
    block_size: int
    """Tokens."""
    is_approximate: bool = False
    """Whether texts were cut into blocks by characters, since the tokens are not known."""


def read_traffic(path: Path, most: int = 0) -> LoggedTraffic:
    """Return the traffic of a file, or of its first `most` lines unless `most` is 0.

    Raises OSError, and ValueError that names the file and, for a bad line, its number.
    """
    with open_gzipped(path) as file:
        first = next(_lines(path, file), None)
    if first is None:
        raise ValueError(f"{path} is empty")
    try:
        known = msgspec.json.decode(first[1])
    except UNREADABLE as error:
        raise ValueError(f"{path}, line {first[0]}: {error}. {WANTED}") from error
    if not isinstance(known, dict) or "timestamp" not in known:
        raise ValueError(f"{path}, line {first[0]}: has no timestamp{_named(known)}. {WANTED}")
    is_mooncake = "input_length" in known
    traffic = _mooncake(path, most) if is_mooncake else _log(path, most)
    requests = sorted(traffic.requests, key=lambda one: one.at)
    return replace(traffic, requests=with_affinity(requests))


def _named(line: object) -> str:
    """Return the names of a line's first fields, in words."""
    return (
        f", but {', '.join(map(bad_line.shown, islice(line, 8)))}" if isinstance(line, dict) else ""
    )


def _lines(path: Path, file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield a file's lines that are not empty, with their numbers."""
    number = 0
    while True:
        number += 1
        try:
            line = file.readline(MOST_LINE_BYTES + 1)
        except (EOFError, *DAMAGED) as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
        if not line:
            return
        if len(line) > MOST_LINE_BYTES:
            raise ValueError(f"{path}, line {number}: longer than {MOST_LINE_BYTES} bytes")
        if line.strip():
            yield number, line


LineT = TypeVar("LineT", MooncakeLine, LogLine)


def _decoded(path: Path, most: int, kind: type[LineT]) -> Iterator[tuple[str, LineT]]:
    """Yield each line's place (file and number) and content."""
    decoder = msgspec.json.Decoder(kind)
    with open_gzipped(path) as file:
        for number, line in islice(_lines(path, file), most or None):
            where = f"{path}, line {number}"
            try:
                yield where, decoder.decode(line)
            except UNREADABLE as error:
                raise ValueError(f"{where}: {bad_line.described(line, error)}") from error


def _mooncake(path: Path, most: int) -> LoggedTraffic:
    requests = []
    room = MOST_BLOCKS
    for where, line in _decoded(path, most, MooncakeLine):
        tokens = max(1, line.input_length)
        _check_count(where, "hash_ids", len(line.hash_ids), tokens, MOONCAKE_BLOCK)
        room = _take_room(where, room, len(line.hash_ids))
        keys = _chained(0, line.hash_ids)
        requests.append(
            LoggedRequest(line.timestamp / 1000, tokens, max(1, line.output_length), keys)
        )
    return LoggedTraffic(requests, MOONCAKE_BLOCK)


def _log(path: Path, most: int) -> LoggedTraffic:
    requests = []
    room, size = MOST_BLOCKS, 0
    ratio = 0.0
    for where, line in _log_lines(path, most):
        named = line.names is not None
        if named and line.block_size is None:
            raise ValueError(f"{where}: block_size is missing (tokens per block)")
        block_size = line.block_size or LOG_BLOCK
        size = size or block_size
        if block_size != size:
            raise ValueError(f"{where}: block_size is {block_size}, but {size} in earlier lines")
        if line.words is not None and not ratio:
            ratio = _characters_per_token(path, most)
        tokens, keys = _content(where, line, size, ratio)
        room = _take_room(where, room, len(keys))
        requests.append(
            LoggedRequest(
                _seconds(where, line.timestamp),
                tokens,
                max(1, line.output_tokens or 0),
                keys,
                session="" if line.session is None else str(line.session),
            )
        )
    return LoggedTraffic(requests, size, is_approximate=ratio > 0)


def _log_lines(path: Path, most: int) -> Iterator[tuple[str, LogLine]]:
    """Yield each line's place and content; those of requests without a body are passed over."""
    for where, line in _decoded(path, most, LogLine):
        if not line.request_body and line.output_tokens is None and line.response_bytes is not None:
            continue
        if line.request_body:
            try:
                _take_body(line, line.request_body)
            except ValueError as error:
                raise ValueError(f"{where}: {error}") from error
        if line.output_tokens is None:
            raise ValueError(f"{where}: output_tokens is missing. {WANTED}")
        yield where, line


def _take_body(line: LogLine, text: str) -> None:
    body = read_body(text)
    for name, value in body.fields().items():
        if value:
            if getattr(line, name):
                raise ValueError(f"request_body, {name}: only one of these may be given")
            setattr(line, name, value)
    if line.output_tokens is None and line.response_bytes is not None:
        line.output_tokens = body.answer_tokens(line.response_bytes)


def _content(where: str, line: LogLine, size: int, ratio: float) -> tuple[int, tuple[int, ...]]:
    """Return the number of tokens of a line's prompt, and the keys of its blocks."""
    given = [name for name in PROMPT_FIELDS if getattr(line, name) is not None]
    if len(given) > 1:
        raise ValueError(f"{where}: {', '.join(given)}: only one of these may be given")
    root = Keyspace(line.model or "", size).root()
    names, words = line.names, line.words
    if names is not None:
        if not line.input_tokens:
            raise ValueError(f"{where}: input_tokens is missing or 0")
        _check_count(where, given[0], len(names), line.input_tokens, size)
        return line.input_tokens, _chained(root, names)
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
        return tokens, _chained(root, pieces)
    wanted = f"{', '.join(PROMPT_FIELDS[:-1])} or {PROMPT_FIELDS[-1]}"
    raise ValueError(f"{where}: one of {wanted} is needed, and must not be empty")


def _chained(root: int, names: Sequence[Name]) -> tuple[int, ...]:
    """Return a chained key for each block."""
    keys = []
    key = root
    for name in names:
        key = xxhash.xxh64_intdigest(str(name).encode(errors="surrogatepass"), key)
        keys.append(key)
    return tuple(keys)


def _characters_per_token(path: Path, most: int) -> float:
    """Return the mean characters per token of the texts with `input_tokens`, or the default."""
    characters = tokens = 0
    for _, line in _log_lines(path, most):
        if line.input_tokens and line.words:
            characters += len(line.words)
            tokens += line.input_tokens
    return characters / tokens if tokens else CHARACTERS_PER_TOKEN


def _check_count(where: str, field: str, count: int, tokens: int, size: int) -> None:
    full, all_of_them = tokens // size, -(-tokens // size)
    if not full <= count <= all_of_them:
        raise ValueError(
            f"{where}: {field}: {count} for {tokens} tokens; with a block size of {size} there must be "
            f"{full} (full blocks only) or {all_of_them} (all blocks)"
        )


def _take_room(where: str, room: int, blocks: int) -> int:
    if blocks > room:
        raise ValueError(f"{where}: more than {MOST_BLOCKS} blocks; take fewer lines (--requests)")
    return room - blocks


def _seconds(where: str, stamp: float | str) -> float:
    if isinstance(stamp, str):
        try:
            when = datetime.fromisoformat(stamp)
        except ValueError as error:
            problem = f"timestamp is {bad_line.shown(stamp)}, neither seconds nor ISO 8601"
            raise ValueError(f"{where}: {problem}") from error
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    if not math.isfinite(stamp):
        raise ValueError(f"{where}: timestamp is {stamp}, not finite")
    return stamp


def with_affinity(requests: Sequence[LoggedRequest]) -> list[LoggedRequest]:
    """Guess the session of each request without one: by its first block that few requests share.

    A block that many requests share is a system prompt, not a session, as in `../shared/bench/sim.py`.
    """
    frequency = Counter(key for one in requests for key in one.keys)
    common = max(50, len(requests) * 0.005)
    found = []
    for number, one in enumerate(requests):
        key = next((key for key in one.keys if frequency[key] <= common), None)
        guess = f"alone/{number}" if key is None else f"block/{key:x}"
        found.append(replace(one, affinity=one.session or guess))
    return found
