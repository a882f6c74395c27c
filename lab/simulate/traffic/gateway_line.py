"""A line of a gateway's own access log, made a line of ours.

nginx and Envoy log neither prompts' blocks nor numbers of tokens. What they can log is a request's body
and the bytes of the answer; docs/simulate.md has their settings.
"""

from typing import Any

import msgspec

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
