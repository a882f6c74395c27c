"""A line of nginx or Envoy becomes a request that went somewhere; a bad one names its field."""

import json
import re
from typing import Any

import pytest

from warmpath.router.shadow.gateway_line import Passed, Sent, read_sent

BODY = '{"model": "m", "prompt": "Why?"}'
CHAT = '{"model": "m", "messages": [{"role": "user", "content": "Why?"}]}'
LINE = {"timestamp": 1772366400.5, "request_body": BODY, "upstream": "10.0.0.2:8000"}


def line(**changes: Any) -> bytes:
    return json.dumps({**LINE, **changes}).encode()


def test_nginxs_line_is_of_the_end_and_tells_every_attempt() -> None:
    told = line(
        upstream="10.0.0.1:8000, 10.0.0.2:8000",
        request_time=2.25,
        status=200,
        path="/v1/chat/completions",
    )
    at = 1772366398.25
    assert read_sent(told) == Sent(at, "10.0.0.2:8000", "/v1/chat/completions", BODY.encode(), None)
    assert read_sent(line(upstream="10.0.0.9:1 : 10.0.0.2:8000")) == read_sent(line())


def test_envoys_line_is_of_the_beginning() -> None:
    told = line(timestamp="2026-03-01T12:00:00.500Z", cached_tokens=64)
    assert read_sent(told) == Sent(
        1772366400.5, "10.0.0.2:8000", "/v1/completions", BODY.encode(), 64
    )


@pytest.mark.parametrize(
    ("prompt", "path", "body"),
    [
        ({"request_body": CHAT}, "/v1/chat/completions", json.loads(CHAT)),
        ({"token_ids": [1, 2]}, "/v1/completions", {"model": "m", "prompt": [1, 2]}),
        ({"text": "Why?"}, "/v1/completions", {"model": "m", "prompt": "Why?"}),
        (
            {"messages": [{"role": "user", "content": "Why?"}]},
            "/v1/chat/completions",
            json.loads(CHAT),
        ),
    ],
)
def test_a_prompt_comes_in_any_form(prompt: dict[str, Any], path: str, body: object) -> None:
    sent = read_sent(line(**{"request_body": None, "model": "m", **prompt}))
    assert isinstance(sent, Sent)
    assert (sent.path, json.loads(sent.body)) == (path, body)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"request_body": ""}, Passed.NO_PROMPT),
        ({"upstream": "-"}, Passed.UNSENT),
        ({"upstream": ""}, Passed.UNSENT),
        ({"status": 503}, Passed.FAILED),
    ],
)
def test_what_no_pod_computed_is_passed_over(changes: dict[str, Any], why: Passed) -> None:
    assert read_sent(line(**changes)) is why


@pytest.mark.parametrize(
    ("told", "problem"),
    [
        (b"secret", "is no JSON object"),
        (b'{"upstream": "secret"}', "timestamp"),
        (line(timestamp=1772366400500), "timestamp is 1772366400500.0, not 0 to 7300000000"),
        (line(timestamp="now"), 'timestamp is "now", neither seconds nor ISO 8601'),
        (line(upstream=None), "upstream is missing"),
        (line(upstream=[1]), "upstream: expected `str | null`"),
        (line(request_time=-1), "request_time: expected `float` >= 0.0"),
        (line(text="secret"), "request_body, text: only one of these may be given"),
        (line(request_body=CHAT[:-9]), "request_body is not the JSON of a whole body"),
        (line(request_body=None, token_ids=[-1]), "token_ids[0]: expected `int` >= 0"),
    ],
)
def test_a_bad_line_names_the_field_and_quotes_no_prompt(told: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)) as raised:
        read_sent(told)
    assert "secret" not in str(raised.value)
    assert "Why" not in str(raised.value)
