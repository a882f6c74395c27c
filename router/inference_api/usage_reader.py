"""Reads a response as it passes: the first token, and the usage."""

from router.inference_api.event_stream import EventStream
from router.inference_api.json_values import JsonValues, Paths
from router.inference_api.usage import Usage, usage_of

MOST_HELD_BYTES = 4096
"""Most bytes of an event that are held; a longer one is read as it comes."""

BEFORE_FIRST_TOKEN = frozenset(
    (
        *(b'"message_start"', b'"message_stop"', b'"ping"', b'"error"'),
        *(b'"response.created"', b'"response.queued"', b'"response.in_progress"'),
        *(b'"response.failed"', b'"response.incomplete"'),
    )
)
"""Types of events, in JSON, that no token comes with: Anthropic's messages, OpenAI's responses."""

USAGE: Paths = {
    b"usage": "usage",
    b"meta_info": "usage",  # SGLang's /generate
    b"message": {b"usage": "usage"},  # Anthropic's message_start
    b"response": {b"usage": "usage"},  # OpenAI's response.completed
}
EVENT: Paths = {**USAGE, b"type": "type", b"error": "error", b"choices": "choices"}


class _Event:
    """One event of a stream."""

    def __init__(self) -> None:
        self._values: dict[str, bytes | None] = {}
        self._document = JsonValues(EVENT, self._found)
        self._is_object: bool | None = None
        self.usages: list[bytes] = []

    def _found(self, name: str, value: bytes | None) -> None:
        if name != "usage":
            self._values[name] = value and value.strip()
        elif value is not None:
            self.usages.append(value)

    def feed(self, piece: bytes) -> None:
        """Read the event's next bytes."""
        if self._is_object is None:
            self._is_object = piece.startswith(b"{")
        self._document.feed(piece)

    def has_token(self) -> bool:
        """Return whether the event, which is complete, came with a token or after one."""
        values = self._values
        if not self._is_object or values.get("error", b"null") != b"null":
            return False
        if "type" in values:
            return values["type"] not in BEFORE_FIRST_TOKEN
        return values.get("choices", b"") != b"[]"


class UsageReader:
    """Reads one response of any API.

    No bytes raise an error. A response that is compressed, or that is neither JSON nor a stream of
    events, tells nothing.
    """

    def __init__(self, content_type: str, content_encoding: str = "") -> None:
        """Begin with the values of the response's headers of these names."""
        self.usage = Usage()
        """As far as the response has told it."""
        self.first_token_seen = False
        """Whether an event with a token has come. Stays False for a response in one piece: it is
        complete before its first byte comes, so it does not tell when its first token was there."""
        kind = content_type.partition(";")[0].strip().lower()
        is_plain = content_encoding.strip().lower() in ("", "identity")
        is_json = kind in ("", "application/json") or kind.endswith("+json")
        self._events = EventStream() if is_plain and kind == "text/event-stream" else None
        self._document = JsonValues(USAGE, self._found) if is_plain and is_json else None
        self._event: _Event | None = None
        """The event that has begun, if more than MOST_HELD_BYTES of it have come."""
        self._held = b""
        """Otherwise all that has come of it."""

    def feed(self, chunk: bytes) -> None:
        """Read the response's next bytes."""
        if self._events is not None:
            for piece in self._events.feed(chunk):
                if piece is None:
                    self._end_event()
                else:
                    self._event_on(piece)
        elif self._document is not None:
            self._document.feed(chunk)

    def _found(self, _: str, value: bytes | None) -> None:
        if value is not None:
            self.usage = self.usage.then(usage_of(value))

    def _event_on(self, piece: bytes) -> None:
        if self._event is None:
            if len(self._held) + len(piece) <= MOST_HELD_BYTES:
                self._held += piece
                return
            piece, self._held = self._held + piece, b""
            self._event = _Event()
        self._event.feed(piece)

    def _end_event(self) -> None:
        event, self._event = self._event, None
        held, self._held = self._held, b""
        if event is None:
            # Most events of a stream are tokens that tell no usage.
            if self.first_token_seen and b"usage" not in held and b"meta_info" not in held:
                return
            event = _Event()
            event.feed(held)
        for usage in event.usages:
            self._found("usage", usage)
        self.first_token_seen = self.first_token_seen or event.has_token()
