"""An HTTP request that goes to the picked pod, and its response, as both transports see them; no I/O."""

from collections.abc import Mapping
from math import ceil
from typing import Any

import msgspec
from msgspec.structs import asdict

from warmpath.client.calls import Prompt
from warmpath.client.failure import CallError
from warmpath.client.request import Request
from warmpath.process.bytes import UNREADABLE
from warmpath.proto.errors import Reason
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.endpoint_picker.protocol import RANK
from warmpath.router.inference_api.response import LEAST_ERROR, UsageReader

STATUSES = {
    Reason.Name(Reason.UNKNOWN_MODEL): 404,
    Reason.Name(Reason.QUEUE_FULL): 429,
    Reason.Name(Reason.NO_POD): 503,
}
MOST_CLIENT_CHARS = 256
"""At most four bytes each, as many as the contract allows."""
DONE = b"[DONE]"
"""The data of the last event of OpenAI's streams, after which clients stop to read."""


class _Named(msgspec.Struct):
    model: str = ""


def read_request(path: str, body: bytes) -> tuple[Prompt | None, str]:
    """Return a request's prompt and its model; the model is empty if the body names none.

    The prompt is None for other APIs than chats and completions: their picks go by load.
    """
    try:
        model = msgspec.json.decode(body, type=_Named).model
    except UNREADABLE:
        model = ""
    if path.endswith("/chat/completions"):
        return Prompt(chat_body=body), model
    return Prompt(completions_body=body) if path.endswith("/completions") else None, model


def client_of(headers: Mapping[str, str]) -> str:
    """Return the client's name as a pick takes it: the beginning of its User-Agent."""
    return headers.get("user-agent", "")[:MOST_CLIENT_CHARS]


def refusal_of(error: CallError) -> tuple[int, dict[str, str], bytes] | None:
    """Return the status, headers and body of a refused request; None if it may go to any pod."""
    status = STATUSES.get(error.reason or "")
    if status is None:
        return None
    body = msgspec.json.encode({"error": {"message": error.message, "code": error.reason}})
    headers = {"content-type": "application/json", "content-length": str(len(body))}
    if error.retry_after is not None:
        headers["retry-after"] = str(ceil(error.retry_after))
    return status, headers, body


def rank_header(picked: Request, pod: pb.Candidate) -> dict[str, str]:
    """Return the header that names the picked rank to an engine; empty if all candidates have rank 0."""
    return {RANK: str(pod.rank)} if any(one.rank for one in picked.candidates) else {}


class ResponseWatch:
    """Reads a response as it passes, and reports the request's progress and end."""

    def __init__(self, picked: Request, response: Any) -> None:
        """Begin with the response's status and headers."""
        self._picked = picked
        headers = response.headers
        self._reader = UsageReader(
            headers.get("content-type", ""), headers.get("content-encoding", "")
        )
        self._last = b""
        if response.status_code >= LEAST_ERROR:
            picked.fail()

    def feed(self, chunk: bytes) -> None:
        self._reader.feed(chunk)
        self._last = (self._last + chunk[-16:])[-16:]
        if self._reader.first_token_seen:
            self._picked.first_token()

    def end(self) -> None:
        """Report the usage, and the request as finished."""
        self._reader.end()
        self._picked.usage(asdict(self._reader.usage))
        self._picked.finish()

    def close(self) -> None:
        """Report the request as failed unless it is complete; nothing more is read."""
        if self._last.rstrip().endswith(DONE):
            self.end()
        else:
            self._picked.fail()
