"""A line of an access log (`docs/simulate.md` describes its fields)."""

from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from warmpath.lab.simulate.traffic import bad_line
from warmpath.lab.simulate.traffic.gateway_line import read_body
from warmpath.lab.simulate.traffic.named_blocks import Name

WANTED = (
    "A line needs timestamp, output_tokens and a prompt, or timestamp, request_body and response_bytes "
    "as nginx or Envoy can log them: docs/simulate.md#access-logs has their settings"
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
