"""One recorded exchange: a request to the engine, its answer, and its line in a recording."""

import json
from typing import Any


class RecordedExchange:
    """A generation request on its way through the recorder.

    It adds to the body the fields that make the engine report token ids and a stream's usage, which
    a recording needs. The rest of the body stays as it was.
    """

    def __init__(self, number: int, path: str, raw: bytes, started: float) -> None:
        self._number = number
        self._path = path
        self._started = started
        self.sent = raw
        """The body that is sent to the engine."""
        self._body: Any = None
        try:
            body = json.loads(raw)
        except ValueError:
            return
        if not isinstance(body, dict):
            return
        self._body = {"return_token_ids": True, **body}
        if body.get("stream"):
            options = body.get("stream_options") or {}
            self._body["stream_options"] = {**options, "include_usage": True}
        self.sent = json.dumps(self._body).encode()

    @property
    def body(self) -> dict[str, Any]:
        """The request's body; empty if it is not a JSON object."""
        return self._body if isinstance(self._body, dict) else {}

    def line(self, status: int, answer: bytes) -> dict[str, Any]:
        """Return the fields of the recording's line, given the engine's status and whole answer."""
        fields: dict[str, Any] = {
            "id": self._number,
            "phase": "recorded",
            "t_start": self._started,
            "path": self._path,
            "body": self.body,
            "status": status,
        }
        if status != 200:
            return fields | {"error": answer.decode("utf-8", "replace")[:1000]}
        streamed = bool(fields["body"].get("stream"))
        parts = _chunks(answer) if streamed else [json.loads(answer)]
        return fields | _answered(parts)


def _chunks(answer: bytes) -> list[dict[str, Any]]:
    """Return the JSON objects of a streamed answer, up to the first that is cut off."""
    chunks = []
    for line in answer.split(b"\n"):
        data = line.removeprefix(b"data: ").strip()
        if data.startswith(b"{"):
            try:
                chunks.append(json.loads(data))
            except ValueError:
                break
    return chunks


def _answered(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the prompt's tokens, every sample's tokens and the usage from an answer's parts."""
    prompt: list[int] | None = None
    usage: dict[str, Any] | None = None
    outputs: dict[int, dict[str, Any]] = {}
    for part in parts:
        prompt = prompt or part.get("prompt_token_ids")
        usage = part.get("usage") or usage
        for choice in part.get("choices") or ():
            prompt = prompt or choice.get("prompt_token_ids")
            sample = outputs.setdefault(
                choice.get("index", 0), {"token_ids": [], "finish_reason": None}
            )
            sample["token_ids"] += choice.get("token_ids") or []
            sample["finish_reason"] = choice.get("finish_reason") or sample["finish_reason"]
    samples = [outputs[index] for index in sorted(outputs)]
    return {"prompt_token_ids": prompt, "outputs": samples, "usage": usage}
