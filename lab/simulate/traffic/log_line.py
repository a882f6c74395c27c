"""A line of an access log (`docs/guides/simulate-and-verify.md` describes its fields).

nginx and Envoy log neither prompts' blocks nor numbers of tokens. What they can log is a request's body
and the bytes of the answer; docs/guides/simulate-and-verify.md has their settings.
"""

from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from warmpath.lab.simulate.traffic import bad_line
from warmpath.lab.simulate.traffic.requests import Name
from warmpath.process.bytes import UNREADABLE

BYTES_PER_TOKEN = 4
"""Assumed of an answer that comes whole."""
STREAMED_BYTES_PER_TOKEN = 220
"""Assumed of a streamed answer: an event of a chat's stream, with one token, its id and its model."""


class Body(msgspec.Struct):
    """An inference request's body; further fields are ignored."""

    model: str = ""
    messages: list[dict[str, Any]] | None = None
    prompt: str | list[int] | None = None
    stream: bool = False

    def fields(self) -> dict[str, Any]:
        """Return the fields of a log's line that have the prompt and its model."""
        prompt = {"token_ids" if isinstance(self.prompt, list) else "prompt": self.prompt}
        return {"model": self.model, "messages": self.messages, **prompt}

    def answer_tokens(self, response_bytes: int) -> int:
        """Return about how many tokens an answer of this many bytes has."""
        return response_bytes // (STREAMED_BYTES_PER_TOKEN if self.stream else BYTES_PER_TOKEN)


def read_body(text: str) -> Body:
    """Return a logged body. Raises ValueError that does not quote it."""
    try:
        return msgspec.json.decode(text, type=Body)
    except msgspec.ValidationError as error:
        raise ValueError(f"request_body: {error}") from error
    except UNREADABLE as error:
        raise ValueError("request_body is not the JSON of a whole body") from error


WANTED = (
    "A line needs timestamp, output_tokens and a prompt, or timestamp, request_body and response_bytes "
    "as nginx or Envoy can log them: docs/guides/simulate-and-verify.md#access-logs has their settings"
)

PROMPT_FIELDS = ("prompt_hashes", "hash_ids", "token_ids", "text", "prompt", "messages")
"""The fields with a prompt; a line of a log has exactly one of them."""

MOST_SECONDS = 7.3e9
"""The latest timestamp, in the year 2201: milliseconds since 1970 are beyond it."""

Tokens = Annotated[int, Meta(ge=0, le=10_000_000)]


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
    def prompts(self) -> list[str]:
        """The names of the fields that are there and have a prompt."""
        return [name for name in PROMPT_FIELDS if getattr(self, name) is not None]

    @property
    def words(self) -> str | None:
        """The prompt's text; None if the line has none."""
        if self.messages is not None:
            return "".join(_spoken(message) for message in self.messages)
        return self.prompt if self.text is None else self.text

    @property
    def seconds(self) -> float:
        """The timestamp in seconds. Raises ValueError."""
        stamp = self.timestamp
        if isinstance(stamp, str):
            try:
                when = datetime.fromisoformat(stamp)
            except ValueError as error:
                problem = f"timestamp is {bad_line.shown(stamp)}, neither seconds nor ISO 8601"
                raise ValueError(problem) from error
            seconds = (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
        else:
            seconds = stamp
        if not 0 <= seconds <= MOST_SECONDS:
            problem = f"not 0 to {MOST_SECONDS:.0f} seconds (the years 1970 to 2201)"
            raise ValueError(f"timestamp is {bad_line.shown(stamp)}, {problem}")
        return seconds


def _spoken(message: dict[str, Any]) -> str:
    content = message.get("content")
    if not isinstance(content, str):
        content = msgspec.json.encode(content).decode()
    return f"{message.get('role')}\n{content}\n"


_DECODER = msgspec.json.Decoder(LogLine)


def read_line(raw: bytes) -> LogLine | None:
    """Return a line, with its prompt and its answer's tokens; None for a request without a body.

    Raises ValueError.
    """
    line = bad_line.decoded(_DECODER, raw)
    if not line.request_body and line.output_tokens is None and line.response_bytes is not None:
        return None
    if line.request_body:
        _take_body(line, line.request_body)
    if line.output_tokens is None:
        raise ValueError(f"output_tokens is missing. {WANTED}")
    if len(line.prompts) > 1:
        raise ValueError(f"{', '.join(line.prompts)}: only one of these may be given")
    return line


def _take_body(line: LogLine, text: str) -> None:
    body = read_body(text)
    for name, value in body.fields().items():
        if value:
            if getattr(line, name):
                raise ValueError(f"request_body, {name}: only one of these may be given")
            setattr(line, name, value)
    if line.output_tokens is None and line.response_bytes is not None:
        line.output_tokens = body.answer_tokens(line.response_bytes)
