"""The contract of an API's answer with the handler that sends it, whole or as server-sent events.

Fields that only shape probabilities (`temperature`, `seed`, `logit_bias`, penalties, …) are ignored,
since the answer's tokens are arbitrary anyway. So are `stop` and `stop_token_ids`: an answer never stops
before `max_tokens`, so `ignore_eos` and `min_tokens` always hold. A field that promises a property of
the answer, or an addition to it, is refused, because an answer without it would be a lie.
"""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import msgspec

from warmpath.lab.simworker.api.errors import bad
from warmpath.lab.simworker.api.fields import Fields
from warmpath.lab.simworker.api.inference.request_options import RequestOptions
from warmpath.lab.simworker.api.inference.token_stream import Piece
from warmpath.lab.simworker.server.flight import Flight
from warmpath.lab.simworker.server.text import TextCodec

Event = dict[str, Any]

_encode = msgspec.json.Encoder().encode


class Answer:
    """The answer to one HTTP request, made of its samples (`flights`) as their tokens come.

    `created` is when the answer begins, in seconds of the Unix epoch.
    """

    last: ClassVar = b"data: [DONE]\n\n"
    """The bytes that end a stream, after its last event."""

    def __init__(
        self, options: RequestOptions, flights: Sequence[Flight], text: TextCodec, created: int
    ) -> None:
        self._options = options
        self._flights = flights
        self._text = text
        self._created = created
        self._begin()

    def _begin(self) -> None:
        """Prepare the parts that only a subclass has."""

    def whole(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        """Return the answer that is not streamed; a piece holds all tokens of a choice."""
        raise NotImplementedError

    def opening(self) -> Iterable[Event]:
        """Return the events that are sent at once, before the first token."""
        return ()

    def chunks(self, piece: Piece) -> Iterable[Event]:
        """Return the events for new tokens."""
        raise NotImplementedError

    def closing(self) -> Iterable[Event]:
        """Return the events after the last token."""
        return ()


def encoded(events: Iterable[Event]) -> bytes:
    """Return events as bytes of a stream of server-sent events; an event's `type` becomes its name."""
    return b"".join(
        b"%bdata: %b\n\n" % (b"event: %b\n" % kind.encode() if kind else b"", _encode(event))
        for event in events
        for kind in (event.get("type"),)
    )


NOTHING: tuple[Any, ...] = (None, False, "", [], {})

BOTH: dict[str, tuple[Any, ...]] = {
    "allowed_token_ids": NOTHING,
    "bad_words": NOTHING,
    "logprob_token_ids": NOTHING,
    "prompt_embeds": NOTHING,
    "response_format": (*NOTHING, {"type": "text"}),
    "structured_outputs": NOTHING,
    "truncate_prompt_tokens": (None,),
    "use_beam_search": NOTHING,
}
COMPLETIONS = BOTH | {"logprobs": (None,), "suffix": NOTHING}
CHAT = BOTH | {
    "audio": NOTHING,
    "chat_template": NOTHING,
    "continue_final_message": NOTHING,
    "documents": NOTHING,
    "echo": NOTHING,
    "logprobs": NOTHING,
    "tool_choice": (None, "none", "auto"),
    "top_logprobs": (None, 0),
}


def refuse(fields: Fields, refused: dict[str, tuple[Any, ...]]) -> None:
    """Raise ApiError for a field that asks for a feature that a simulated model lacks."""
    for name in refused.keys() & fields.body.keys():
        if fields.body[name] not in refused[name]:
            raise bad(name, "a simulated model has no such thing; leave it out")
