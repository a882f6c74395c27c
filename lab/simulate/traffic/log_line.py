"""A line of an access log (`docs/guides/simulate-and-verify.md` describes its fields).

nginx and Envoy log neither prompts' blocks nor numbers of tokens. What they can log is a request's body
and the bytes of the answer; docs/guides/simulate-and-verify.md has their settings.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from warmpath.lab.simulate.traffic.requests import Name
from warmpath.router.shadow.gateway_line import GatewayLine, decoded, read_body

BYTES_PER_TOKEN = 4
"""Assumed bytes per token of an answer that is not streamed."""
STREAMED_BYTES_PER_TOKEN = 220
"""Assumed bytes per token of a streamed answer: an event of a chat has one token, an id and a model."""

WANTED = (
    "A line needs timestamp, output_tokens and a prompt, or timestamp, request_body and response_bytes "
    "as nginx or Envoy can log them: docs/guides/simulate-and-verify.md#recorded-logs has their settings"
)

PROMPT_FIELDS = ("prompt_hashes", "hash_ids", "token_ids", "text", "prompt", "messages")
"""The fields with a prompt; a line of a log has exactly one of them."""

Tokens = Annotated[int, Meta(ge=0, le=10_000_000)]


class LogLine(GatewayLine):
    """A line of an access log; further fields are ignored."""

    output_tokens: Tokens | None = None
    response_bytes: Annotated[int, Meta(ge=0)] | None = None
    """Bytes of the answer, in place of `output_tokens`; only with `request_body`."""
    input_tokens: Tokens | None = None
    block_size: Annotated[int, Meta(ge=1, le=65_536)] | None = None
    """Tokens per block; None for `LOG_BLOCK`."""
    prompt_hashes: list[Name] | None = None
    hash_ids: list[Name] | None = None
    session: Name | None = None

    @property
    def names(self) -> list[Name] | None:
        """The names of the prompt's blocks; None if the line has none."""
        return self.hash_ids if self.prompt_hashes is None else self.prompt_hashes

    @property
    def prompts(self) -> list[str]:
        """The names of the fields with a prompt that the line has."""
        return [name for name in PROMPT_FIELDS if getattr(self, name) is not None]

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


_DECODER = msgspec.json.Decoder(LogLine)


def read_line(raw: bytes) -> LogLine | None:
    """Return a line, with its prompt and its answer's tokens; None for a request without a body.

    Raises ValueError for any other line that is not as the guide describes it.
    """
    line = decoded(_DECODER, raw)
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
        size = STREAMED_BYTES_PER_TOKEN if body.stream else BYTES_PER_TOKEN
        line.output_tokens = line.response_bytes // size
