"""An engine's /tokenize with one token per byte and a begin token."""

import json
import ssl
from typing import Any

from tests.fake_http import Answer, Asked, FakeHttp

BEGIN = 256


class FakeEngine(FakeHttp):
    """Serves /tokenize; a chat's tokens are those of its contents, each after a begin token."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(tokenized, tls)

    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(asked.body) for asked in self.asked]


def tokenized(asked: Asked) -> Answer:
    assert asked.path == "/tokenize"
    body = json.loads(asked.body)
    if "messages" in body:
        ids = [id_ for one in body["messages"] for id_ in (BEGIN, *one["content"].encode())]
    else:
        ids = [BEGIN] * body["add_special_tokens"] + list(body["prompt"].encode())
    return listed(ids)


def listed(ids: list[int]) -> Answer:
    answer = {"tokens": ids, "count": len(ids), "max_model_len": 4096}
    return Answer(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})
