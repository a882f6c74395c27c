"""Finds the first token and the usage in a response that passes through in pieces.

Each API writes the usage in its own way, and no two of them give one key two meanings:

    OpenAI's completions, chats, embeddings  prompt_tokens, prompt_tokens_details.cached_tokens,
      and vLLM's /inference/v1/generate      completion_tokens
    OpenAI's responses                       input_tokens, input_tokens_details.cached_tokens,
                                             output_tokens
    Anthropic's messages                     input_tokens, which leaves out the two that follow,
                                             cache_read_input_tokens, cache_creation_input_tokens,
                                             output_tokens
    SGLang's /generate                       prompt_tokens, cached_tokens, completion_tokens
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from warmpath.process.bytes import UNREADABLE
from warmpath.router.inference_api.json_values import JsonValues, Paths

LEAST_ERROR = 400
"""HTTP statuses from here on mean that the engine has not computed the request."""
MOST_TOKENS = (1 << 32) - 1
"""The largest number that a report can have; a larger one counts as a fault of the engine."""

ENCODED = "encoded"
"""The kind of a content that is compressed, which is never decompressed."""


def kind_of(content_type: str, content_encoding: str) -> str:
    """Return the media type by the headers of these names, or ENCODED; empty if they name none."""
    if content_encoding.strip().lower() not in ("", "identity"):
        return ENCODED
    return content_type.partition(";")[0].strip().lower()


def is_json(kind: str) -> bool:
    """Return whether a content of this kind may be JSON."""
    return kind in ("", "application/json") or kind.endswith("+json")


class Usage(msgspec.Struct, frozen=True):
    """Numbers of tokens as the engine counted them; None where the response has no number."""

    prompt_tokens: int | None = None
    """All prompt tokens, cached ones included, in every API."""
    cached_tokens: int | None = None
    output_tokens: int | None = None

    def then(self, later: "Usage") -> "Usage":
        """Return the usage with the numbers of a later report; numbers that it lacks stay."""
        return Usage(
            _either(later.prompt_tokens, self.prompt_tokens),
            _either(later.cached_tokens, self.cached_tokens),
            _either(later.output_tokens, self.output_tokens),
        )

    def possible(self) -> "Usage":
        """Return the usage without its prompt if more of that is cached than there is."""
        prompt, cached = self.prompt_tokens, self.cached_tokens
        if prompt is not None and cached is not None and cached > prompt:
            return Usage(output_tokens=self.output_tokens)
        return self


def usage_of(found: object) -> Usage:
    """Return the token counts of a `usage` object from JSON; none for any other value."""
    if not isinstance(found, dict):
        return Usage()
    prompt = _count(found.get("prompt_tokens"))
    if prompt is None and (prompt := _count(found.get("input_tokens"))) is not None:
        prompt += _count(found.get("cache_read_input_tokens")) or 0
        prompt += _count(found.get("cache_creation_input_tokens")) or 0
    cached = _either(
        _count(found.get("cached_tokens")), _count(found.get("cache_read_input_tokens"))
    )
    for details in ("prompt_tokens_details", "input_tokens_details"):
        if isinstance(inner := found.get(details), dict):
            cached = _either(_count(inner.get("cached_tokens")), cached)
    output = _either(_count(found.get("completion_tokens")), _count(found.get("output_tokens")))
    return Usage(_count(prompt), cached, output)


def _either(first: int | None, second: int | None) -> int | None:
    return second if first is None else first


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value <= MOST_TOKENS else None


LINE_END = b"\n"
ENDS_OF_EVENTS = (b"\n\n", b"\r\n\r\n")
_ENDS = re.compile(rb"\r\n|\r|\n")
_DATA = b"data:"
_MARK = b"\xef\xbb\xbf"
"""The byte order mark, which the first line may begin with."""


class EventStream:
    """Splits a stream of server-sent events into their data; lines and events may have any length.

    Source of the format: WHATWG HTML, section 9.2.6, "Interpreting an event stream".
    """

    def __init__(self) -> None:
        self._begun: bytes | None = b""
        """The line's first bytes, until its field is known; then None."""
        self._is_first_line = True
        self._is_data_line = False
        self._has_data = False
        """Whether the event has had a line of data."""
        self._after_return = False
        """Whether the last byte was a carriage return: a line feed then ends no line."""

    @property
    def is_between(self) -> bool:
        """Whether the last event has ended, with an empty line, and no other has begun."""
        has_begun = self._has_data or self._after_return or self._is_first_line
        return self._begun == b"" and not has_begun

    def feed(self, chunk: bytes) -> Iterator[bytes | None]:
        """Yield the data in the stream's next bytes, in pieces.

        A piece `LINE_END` ends a line of data, and None an event that has data.
        """
        if not chunk:
            return
        rest = chunk.removeprefix(b"\n") if self._after_return else chunk
        self._after_return = chunk.endswith(b"\r")
        *lines, rest = _ENDS.split(rest)
        for line in lines:
            yield from self._part(line)
            yield from self._end_line()
        yield from self._part(rest)

    def _part(self, part: bytes) -> Iterator[bytes]:
        if self._begun is not None:
            begun = self._begun + part
            if self._is_first_line and begun.startswith(_MARK):
                begun, self._is_first_line = begun[len(_MARK) :], False
            if (_DATA + b" ").startswith(begun) or (
                self._is_first_line and _MARK.startswith(begun)
            ):
                self._begun = begun
                return
            self._begun = None
            self._is_data_line = begun.startswith(_DATA)
            self._has_data |= self._is_data_line
            part = begun[len(_DATA) :].removeprefix(b" ")
        if self._is_data_line and part:
            yield part

    def _end_line(self) -> Iterator[bytes | None]:
        begun, self._begun = self._begun, b""
        if begun == b"" and self._has_data:
            yield None
            self._has_data = False
        elif begun is not None:
            self._is_data_line = begun.startswith(_DATA)
            self._has_data |= self._is_data_line
        if self._is_data_line:
            yield LINE_END
        self._is_data_line = self._is_first_line = False


MOST_HELD_BYTES = 4096
"""Most bytes of an event that are held until it is complete; a longer one is read as it comes."""

BEFORE_FIRST_TOKEN = frozenset(
    (
        *("message_start", "message_stop", "ping", "error"),
        *("response.created", "response.queued", "response.in_progress"),
        *("response.failed", "response.incomplete"),
    )
)
"""Types of events without a token, in Anthropic's messages and OpenAI's responses."""

USAGE: Paths = {
    b"usage": "usage",
    b"meta_info": "usage",  # SGLang's /generate
    b"message": {b"usage": "usage"},  # Anthropic's message_start
    b"response": {b"usage": "usage"},  # OpenAI's response.completed
}
"""Paths in a response or an event at which the usage may lie."""
EVENT: Paths = {**USAGE, b"type": "type", b"error": "error", b"choices": "choices"}


class _LongEvent:
    def __init__(self, begun: bytes) -> None:
        self.is_object = begun.startswith(b"{")
        self.values: dict[str, Any] = {}
        """The fields that show whether the event has a token; an empty text stands for a long value."""
        self.usage = Usage()
        self.document = JsonValues(EVENT, self._found)
        self.document.feed(begun)

    def _found(self, name: str, raw: bytes | None, _: int) -> None:
        value = _decoded(raw) if raw is not None else ""
        if name == "usage":
            self.usage = self.usage.then(usage_of(value))
        else:
            self.values[name] = value


def _decoded(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw)
    except UNREADABLE:
        return None


def _usage(event: Any, paths: Paths = USAGE) -> Usage:
    usage = Usage()
    for key, within in paths.items() if isinstance(event, dict) else ():
        if isinstance(found := event.get(key.decode()), dict):
            inner = usage_of(found) if isinstance(within, str) else _usage(found, within)
            usage = usage.then(inner)
    return usage


def _has_token(event: Mapping[str, Any]) -> bool:
    """Return whether an event has a token, or comes only after one."""
    if event.get("error") is not None:
        return False
    if (kind := event.get("type")) is not None:
        return not isinstance(kind, str) or kind not in BEFORE_FIRST_TOKEN
    return event.get("choices") != []


class UsageReader:
    """Reads one response of any API.

    It accepts all bytes. In a response that is compressed, or that is neither JSON nor a stream of
    events, it finds nothing.
    """

    def __init__(self, content_type: str, content_encoding: str = "") -> None:
        """Begin with the values of the response's headers of these names."""
        self.usage = Usage()
        """The usage that the response has reported so far; after `end`, if it is in one piece."""
        self.first_token_seen = False
        """Whether an event with a token has come. Stays False for a response in one piece: it is
        complete before its first byte comes, so it does not tell when its first token was there."""
        kind = kind_of(content_type, content_encoding)
        self._events = EventStream() if kind == "text/event-stream" else None
        self._is_read = is_json(kind) or self._events is not None
        self._long: _LongEvent | None = None
        """The event, or response in one piece, of which more than MOST_HELD_BYTES have come."""
        self._held = b""
        """The part of a shorter one that has come."""

    def feed(self, chunk: bytes) -> None:
        if self._events is None:
            if self._is_read:
                self._read_on(chunk)
            return
        if (
            self.first_token_seen
            and chunk.endswith(ENDS_OF_EVENTS)
            and not self._may_matter(chunk)
            and self._events.is_between
        ):
            # Whole events with nothing to read in them, as most chunks are.
            return
        for piece in self._events.feed(chunk):
            if piece is None or (piece == LINE_END and self._is_whole()):
                self._end_event()
            else:
                self._read_on(piece)

    def end(self) -> None:
        """Read a response in one piece, or the last event, which no line may end."""
        self._end_event()

    def _is_whole(self) -> bool:
        """Return whether the lines of data so far are an object.

        Then they count as an event: some servers leave out the empty line that ends one.
        """
        if self._long is not None:
            return self._long.document.is_over
        held = self._held.strip()
        if not held.startswith(b"{") or not held.endswith(b"}"):
            return False
        return not self._may_matter(held) or _decoded(held) is not None

    def _may_matter(self, held: bytes) -> bool:
        """Return whether an event is more than a token without a usage, as most of a stream are."""
        return not self.first_token_seen or b"usage" in held or b"meta_info" in held

    def _read_on(self, piece: bytes) -> None:
        if self._long is None:
            if len(self._held) + len(piece) <= MOST_HELD_BYTES:
                self._held += piece
                return
            self._long = _LongEvent(self._held + piece)
            self._held = b""
        else:
            self._long.document.feed(piece)

    def _end_event(self) -> None:
        long, self._long = self._long, None
        held, self._held = self._held, b""
        event: Any
        if long is None and not held:
            return
        if long is not None:
            event, usage = long.values if long.is_object else None, long.usage
        elif not self._may_matter(held):
            return
        else:
            event = _decoded(held)
            usage = _usage(event)
        self.usage = self.usage.then(usage)
        if isinstance(event, dict) and self._events is not None:
            self.first_token_seen = self.first_token_seen or _has_token(event)
