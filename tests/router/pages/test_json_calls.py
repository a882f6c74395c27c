"""The router's read-only calls as JSON: the answers and errors of gRPC, who may ask, and protobuf's messages."""

import asyncio
import base64
import json
import re
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st

from tests.router.access.guarded import TOKENS
from tests.router.pages.stand import live, pods
from tests.router.service_stand import IDS, packed, standing
from warmpath.h2grpc.method import RefusedError
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.pages.json_calls import (
    METHODS,
    MOST_QUESTION_BYTES,
    MOST_TEXT,
    MOST_VALUES,
    PATH,
    message_of,
)

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "tracing-and-live-page.md").read_text(
    encoding="utf-8"
)


async def post(session: aiohttp.ClientSession, method: str, body: Any) -> tuple[int, Any]:
    sent = {"data": BytesIO(body)} if isinstance(body, bytes) else {"json": body}
    async with session.post(PATH + method, **sent) as answer:
        return answer.status, await answer.json()


async def test_answers_are_those_of_grpc(tmp_path: Path, model_folder: Path) -> None:
    async with standing(tmp_path, model_folder) as stand:
        await stand.generate({"model": "demo", "prompt": IDS})
        await stand.has_blocks(6)
        prompt = {"model": "demo", "token_ids": {"ids": IDS}}
        async with aiohttp.ClientSession(f"http://{stand.router.http_address}") as session:
            status, scored = await post(session, "Score", {"prompt": prompt})
            assert status == 200
            _, explained = await post(session, "Explain", {"prompt": prompt})
            _, listed = await post(session, "ListPods", {})
            _, decisions = await post(session, "ListDecisions", {"limit": 3})
            _, diagnosis = await post(session, "Diagnose", b"")
            printed = re.findall(r"curl -s -X POST http://[^/]+(/\S+) -d '(.*)'", PAGE)
            assert len(printed) == 2
            for path, body in printed:
                status, answer = await post(session, path.removeprefix(PATH), body.encode())
                assert (status, "pod-1" in str(answer)) == (200, True), path
        expected = await stand.score(packed())
    assert json_format.ParseDict(scored, pb.ScoreResponse()) == expected
    assert scored["scores"][0]["matched_tokens"] == 96
    assert explained["candidates"][0]["pod"] == listed["pods"][0]["id"] == "pod-1"
    assert decisions == {"decisions": []}
    assert diagnosis["attributions"] == []


ERRORS: list[tuple[str, Any, int, str]] = [
    ("Score", b"{", 400, "body: is not the method's request as JSON"),
    ("Score", b'{"promt": {}}', 400, 'has no field named "promt"'),
    ("Score", b'{"prompt": {"model": 7}}', 400, "body: "),
    ("Score", b"\xff\xfe", 400, "body: "),
    ("Score", b"[" * 3000, 400, "body: "),
    ("Score", {"prompt": {"model": "nobody", "text": "x"}}, 404, "nobody"),
    ("Explain", {"prompt": {"model": "ids-only", "token_ids": {"ids": [1]}}}, 503, "no pod"),
    ("Score", b" " * 4001, 413, "limits.max-prompt-bytes"),
    ("ListPods", b" " * (MOST_QUESTION_BYTES + 1), 413, "ListPods takes no more"),
    ("Diagnose", b"[" * 3000, 400, "body: "),
    ("Score", b"7", 400, "body: "),
    ("Score", b'{"text": "x"}', 400, 'has no field named "text"'),
    ("Score", b'{"prompt": {"text": "x", "text": "y"}}', 400, "duplicate key text"),
    ("Score", b'{"prompt": {"text": "\\ud800"}}', 400, "body: "),
    ("Score", b'{"request_id": ' + b"9" * 3000 + b"}", 400, "body: "),
]
"""Methods, bodies, and the statuses and reasons that they get."""


async def test_errors_say_what_is_wrong(tmp_path: Path) -> None:
    more = '[limits]\nmax-prompt-bytes = 4000\nmax-prompt-tokens = 1000\n[[models]]\nname = "ids-only"\n'
    async with live(tmp_path, more + pods("pod-1")) as (_, session):
        for method, body, status, why in ERRORS:
            found, answer = await post(session, method, body)
            assert (found, why in answer["error"]) == (status, True), (method, body, answer)


async def test_no_call_that_changes_anything_is_served(tmp_path: Path) -> None:
    async with live(tmp_path, pods("pod-1")) as (_, session):
        for method in ("Pick", "Report", "ScoreStream", ""):
            async with session.post(PATH + method, json={}) as answer:
                assert (answer.status, answer.content_type) == (404, "text/plain")
        for method in METHODS:
            async with session.get(PATH + method) as answer:
                assert (answer.status, answer.content_type) == (405, "text/plain")


async def test_lists_of_a_model_that_is_not_known_are_empty(tmp_path: Path) -> None:
    async with live(tmp_path, pods("pod-1")) as (_, session):
        for method, field in (("ListPods", "pods"), ("ListDecisions", "decisions")):
            assert await post(session, method, {"model": "nope"}) == (200, {field: []})
        status, diagnosis = await post(session, "Diagnose", {"model": "nope"})
    assert status == 200
    assert "the router knows no pod of it" in [one["text"] for one in diagnosis["findings"]]


async def test_callers_need_the_role_of_the_method(tmp_path: Path) -> None:
    clients = "".join(
        f'[[clients]]\nname = "{name}"\nroles = ["{role}"]\ntoken-file = "{name}"\n'
        for name, role in (("scorer", "score"), ("reader", "read"))
    )
    for name, token in TOKENS.items():
        (tmp_path / name).write_text(token)
    prompt = {"prompt": {"model": "demo", "token_ids": {"ids": [1]}}}
    async with live(tmp_path, clients + pods("pod-1")) as (router, anybody):
        url = f"http://{router.http_address}"

        async def status(name: str, path: str) -> int:
            headers = {"Authorization": f"Bearer {TOKENS[name]}"} if name else {}
            call = anybody.get if path == "live" else anybody.post
            sent = {} if path == "live" else {"json": prompt if path == "Score" else {}}
            async with call(f"{url}{PATH}{path}", headers=headers, **sent) as answer:
                return answer.status

        asked = [
            (name, path)
            for name in ("", "scorer", "reader")
            for path in ("Score", "ListPods", "live")
        ]
        found = await asyncio.gather(*(status(*one) for one in asked))
    assert found == [401, 401, 401, 200, 403, 403, 403, 200, 200]


ABSURD = {
    "ids": b'{"prompt":{"model":"demo","token_ids":{"ids":[%b1]}}}' % (b"1," * MOST_VALUES),
    "items": b'{"prompt":{"model":"demo","multimodal":[%b{}]}}' % (b"{}," * MOST_VALUES),
    "lists": b'{"pods":[%b[]]}' % (b"[]," * MOST_VALUES),
    "nested": b"[" * MOST_VALUES + b"]" * MOST_VALUES,
    "names": b'{%b"z":1}' % b"".join(b'"%d":"%d",' % (number, number) for number in range(MOST_VALUES)),
    "hidden": b'{"prompt":{"text":"\\"\\\\","multimodal":[%b{}]}}' % (b"{}," * MOST_VALUES),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(ABSURD))
async def test_a_body_of_too_many_values_is_refused_before_objects_are_made(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("the values were counted first")

    monkeypatch.setattr("warmpath.router.pages.json_calls.message_of", never)
    async with live(tmp_path, pods("pod-1")) as (_, session):
        for method in ("Score", "Explain"):
            status, answer = await post(session, method, ABSURD[name])
            assert (status, "token_ids_packed" in answer["error"]) == (400, True), answer


async def test_a_long_prompt_is_one_value_in_each_of_its_forms(tmp_path: Path) -> None:
    ids = list(range(100_000))
    packed_ids = base64.b64encode(b"".join(one.to_bytes(4, "little") for one in ids)).decode()
    text = '", [{}, ' * 200_000
    async with live(tmp_path, pods("pod-1")) as (_, session):
        for prompt in ({"token_ids": {"ids": ids}}, {"token_ids_packed": packed_ids}):
            status, answer = await post(session, "Score", {"prompt": {"model": "demo", **prompt}})
            assert (status, answer["prompt_tokens"]) == (200, len(ids))
        body = json.dumps({"prompt": {"model": "demo", "text": text}}).encode()
        status, answer = await post(session, "Explain", body)
        assert (status, answer["reckoned_tokens"] > 0) == (200, True)
        for name in ("model", "lora", "cache_salt"):
            body = json.dumps({"prompt": {name: text}}).encode()
            status, answer = await post(session, "Score", body)
            assert (status, name in answer["error"]) == (400, True)


NAMES = st.sampled_from(
    ["prompt", "text", "model", "pods", "token_ids", "tokenIds", "ids", "chat_body", "multimodal", "hash",
     "offset", "request_id", "requestId", "explain", "strategy", "loads", "age", "nobody"]
)  # fmt: skip
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 1 << 70)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["7", "AAAA", "NaN"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


@given(st.sampled_from([pb.ScoreRequest, pb.ExplainRequest, pb.ListDecisionsRequest]), VALUES)
def test_a_message_is_the_one_that_protobufs_library_makes(kind: type[Any], value: Any) -> None:
    body = json.dumps(value).encode()
    try:
        expected = json_format.Parse(body, kind())
    except json_format.ParseError:
        with pytest.raises(RefusedError):
            message_of(body, kind)
    else:
        assert message_of(body, kind) == expected.SerializeToString()


@pytest.mark.parametrize(
    "body",
    [
        *(b"  ", b"{", b"\xff\xfe", b"{\0}\0", b"[" * 100_000, b'{"a":' * 100_000, b"1e9999"),
        *(b"null", b"1" * 100_000, b'{"request_id": 1e999999}', b'{"request_id": NaN}'),
    ],
)
def test_bytes_that_are_no_request_are_refused(body: bytes) -> None:
    with pytest.raises(RefusedError):
        message_of(body, pb.ScoreRequest)


@pytest.mark.parametrize("value", ["x" * (MOST_TEXT + 1), ["a", "x" * (MOST_TEXT + 1)]])
def test_only_a_prompt_may_be_long(value: Any) -> None:
    with pytest.raises(RefusedError, match=f"pods: has more than {MOST_TEXT} characters"):
        message_of(json.dumps({"pods": value}).encode(), pb.ScoreRequest)
    text = "x" * (MOST_TEXT + 1)
    body = json.dumps({"prompt": {"text": text}}).encode()
    assert pb.ScoreRequest.FromString(message_of(body, pb.ScoreRequest)).prompt.text == text
