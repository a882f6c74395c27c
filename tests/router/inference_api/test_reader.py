"""Every request is read or routed by load with a named reason; no body is an error."""

import gzip
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.router.inference_api.recorded_apis import VLLM
from tests.vllm.api_bodies import BODIES, HI
from warmpath.indexer.keys.key import pack_tokens
from warmpath.prefixstore.chats.chat import TemplateTraits
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.inference_api.apis.table import PATHS
from warmpath.router.inference_api.reader import InferenceReader
from warmpath.router.inference_api.request import InferenceRequest, Unread
from warmpath.router.prompt.bodies.fields import MOST_VALUES
from warmpath.router.prompt.limits import PromptLimits

CHAT = {"model": "m", "messages": [HI]}
JSON = "application/json"
LIMITS = PromptLimits(max_prompt_bytes=1 << 20, max_prompt_tokens=1000)
TRAITS = TemplateTraits(wants_system_first=False, heeds_no_effort=True, writes_calls_as_given=False)


def reader(engine: str = "vllm", traits: TemplateTraits | None = TRAITS) -> InferenceReader:
    async def traits_of(_: str) -> TemplateTraits | None:
        return traits

    return InferenceReader(LIMITS, lambda _: engine, traits_of)


async def read(
    path: str, body: bytes | dict[str, Any], kind: str = JSON, encoding: str = "", **more: Any
) -> InferenceRequest:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await reader(**more).read(path, raw, kind, encoding)


@pytest.mark.parametrize(
    ("path", "api"),
    [
        ("/v1/chat/completions", "openai-chat"),
        ("/v1/completions", "openai-completions"),
        ("/v1/responses", "openai-responses"),
        ("/v1/messages", "anthropic-messages"),
        ("/v1/messages?beta=true", "anthropic-messages"),
        ("/v1/chat/completions/", "openai-chat"),
        ("/team-a/generate//?x=/", "sglang-generate"),
        ("/generate", "sglang-generate"),
        ("/inference/v1/generate", "vllm-generate"),
        ("/team-a/llms/openai/v1/chat/completions", "openai-chat"),
        ("/v1/chat/completions/batch", "batch"),
        ("/v1/chat/completions/render", "tokens"),
        ("/v1/messages/count_tokens", "tokens"),
        ("/v1/embeddings", "embeddings"),
        ("/pooling", "embeddings"),
        ("/v1/score", "scores"),
        ("/rerank", "scores"),
        ("/v2/rerank", "scores"),
        ("/v1/audio/transcriptions", "audio"),
        ("/api/generate", "others"),
        ("/cohere/v2/chat", "others"),
        ("/v1/chat/completionsx", "unknown"),
        ("/v1/chat/completions/x", "unknown"),
        ("/xgenerate", "unknown"),
        ("/", "unknown"),
        ("", "unknown"),
        ("?/v1/completions", "unknown"),
        ("/" * 10_000, "unknown"),
        ("/é\ud800", "unknown"),
    ],
)
async def test_a_path_tells_the_api(path: str, api: str) -> None:
    request = await read(path, CHAT)
    assert request.api == api
    assert request.model == "m"
    assert (request.prompt is None) == (request.unread_because is not None)
    assert bool(request.problem) == (request.prompt is None)


async def test_chats_and_completions_pass_through_byte_for_byte() -> None:
    chat = b' {"model" : "m", "messages":[{"role":"user","content":"\\u00e9"}], "zz":1.0e5, "stream":true}\n'
    request = await read("/v1/chat/completions", chat)
    assert request.prompt == pb.Prompt(chat_body=chat)
    assert request.model == "m"
    completion = b'{"prompt":["one"],"max_tokens":3,"model":"m"}'
    request = await read("/v1/completions", completion, kind="application/json; charset=utf-8")
    assert request.prompt == pb.Prompt(completions_body=completion)


@pytest.mark.parametrize(
    ("path", "body", "prompt"),
    [
        ("/generate", {"text": "hi"}, pb.Prompt(text="hi")),
        ("/generate", {"input_ids": [1, 2]}, pb.Prompt(token_ids_packed=pack_tokens([1, 2]))),
        (
            "/generate",
            {"text": "hi", "lora_path": "a", "cache_salt": "s", "extra_key": "e", "input_ids": None},
            pb.Prompt(text="hi", lora="a", cache_salt="s", extra_key="e"),
        ),
        ("/generate", {"text": "hi", "return_logprob": True}, pb.Prompt(text="hi")),
        (
            "/inference/v1/generate",
            {"model": "m", "token_ids": [1, 2, 3, 4, 5], "cache_salt": "s", "features": {
                "mm_hashes": {"image": ["b"], "audio": ["a"]},
                "mm_placeholders": {"image": [{"offset": 3, "length": 2}], "audio": [{"offset": 0, "length": 1}]},
            }},
            pb.Prompt(model="m", token_ids_packed=pack_tokens([1, 2, 3, 4, 5]), cache_salt="s", multimodal=[
                pb.MultimodalItem(hash="a", offset=0, length=1), pb.MultimodalItem(hash="b", offset=3, length=2)
            ]),
        ),
    ],
)  # fmt: skip
async def test_token_apis_become_prompts(
    path: str, body: dict[str, Any], prompt: pb.Prompt
) -> None:
    request = await read(path, body)
    assert request.prompt == prompt


LONG = "word " * 100
UNREAD: list[tuple[str, Any, Unread]] = [
    ("/v1/chat/completions", {"model": "m"}, Unread.NO_PROMPT),
    ("/v1/chat/completions", {"model": "m", "messages": None}, Unread.NO_PROMPT),
    ("/v1/completions", {"model": "m"}, Unread.NO_PROMPT),
    ("/v1/completions", {"model": "m", "prompt": [LONG, LONG]}, Unread.SEVERAL_PROMPTS),
    ("/v1/completions", {"model": "m", "prompt": [[1, 2], [3]]}, Unread.SEVERAL_PROMPTS),
    ("/v1/responses", {"model": "m", "input": "x", "previous_response_id": "r"}, Unread.NOT_EXACT),
    ("/v1/responses", {"model": "m", "input": {}}, Unread.NO_PROMPT),
    ("/v1/messages", {"model": "m", "messages": "x"}, Unread.NO_PROMPT),
    ("/v1/messages", {"model": "m", "messages": [HI], "cache_salt": "s" * 2000}, None),
    ("/generate", {"text": ["a", "b"]}, Unread.SEVERAL_PROMPTS),
    ("/generate", {"input_ids": [[1], [2]]}, Unread.SEVERAL_PROMPTS),
    ("/generate", {"text": "a", "input_ids": [1]}, Unread.NO_PROMPT),
    ("/generate", {"input_embeds": [[0.1]]}, Unread.NOT_EXACT),
    ("/generate", {"text": "a", "image_data": "x"}, Unread.NOT_EXACT),
    ("/generate", {"text": "a", "return_logprob": True, "logprob_start_len": 0}, Unread.NO_PREFIX),
    ("/generate", {"inputs": "a", "parameters": {}}, Unread.NO_PROMPT),
    ("/generate", {"text": "a", "cache_salt": "s" * 2000}, Unread.NO_PROMPT),
    ("/generate", {"text": "a", "lora_path": ["x"]}, Unread.NO_PROMPT),
    ("/inference/v1/generate", {"token_ids": []}, Unread.NO_PROMPT),
    ("/inference/v1/generate", {"token_ids": ["a"]}, Unread.NO_PROMPT),
    ("/inference/v1/generate", {"token_ids": [1], "content_parts": [{}]}, Unread.NOT_EXACT),
    ("/inference/v1/generate", {"token_ids": [1], "sampling_params": {"prompt_logprobs": 1}}, Unread.NO_PREFIX),
    ("/inference/v1/generate", {"token_ids": [1], "features": {"mm_hashes": {"a": ["x"]}}}, Unread.NO_PROMPT),
    ("/inference/v1/generate", {"token_ids": [1], "features": {"mm_hashes": {"a": ["x"]}, "mm_placeholders": {"a": [{"offset": -1, "length": 1}]}}}, Unread.NO_PROMPT),
    ("/inference/v1/generate", {"token_ids": [1], "features": {"mm_hashes": {"a": [7]}, "mm_placeholders": {"a": [{"offset": 0, "length": 1}]}}}, Unread.NO_PROMPT),
    ("/inference/v1/generate", {"token_ids": [1] * 2000}, Unread.BODY_TOO_LARGE),
    ("/v1/embeddings", {"model": "m", "input": [LONG]}, Unread.NO_PREFIX),
    ("/v1/chat/completions", CHAT | {"x": [0] * (MOST_VALUES + 1)}, Unread.BODY_TOO_LARGE),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "because"), UNREAD, ids=str)
async def test_a_body_without_a_prompt_has_a_reason(
    path: str, body: Any, because: Unread | None
) -> None:
    request = await read(path, body)
    assert request.unread_because == because
    assert request.model == body.get("model", "")
    if because is not None:
        assert request.prompt is None
        assert request.problem
        assert "word" not in request.problem


@pytest.mark.parametrize("engine", ["trtllm", ""])
@pytest.mark.parametrize(("path", "body"), [*BODIES[:3], ("/v1/responses", {"input": "x"})])
async def test_an_engine_whose_chats_are_not_known_is_not_guessed_at(
    engine: str, path: str, body: dict[str, Any]
) -> None:
    request = await read(path, body, engine=engine)
    assert request.unread_because == Unread.NOT_EXACT
    assert 0 < request.reckoned_tokens < 200


async def test_without_its_template_a_body_that_depends_on_it_is_not_read() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    for path, body in (
        ("/v1/messages", CHAT | {"messages": [HI, {"role": "system", "content": "s"}, HI]}),
        ("/v1/messages", CHAT | {"thinking": {"type": "disabled"}}),
        ("/v1/responses", {"input": [HI, call]}),
    ):
        assert (await read(path, body)).prompt is not None
        assert (await read(path, body, traits=None)).unread_because == Unread.NOT_EXACT


async def test_what_is_no_text_is_not_reckoned() -> None:
    image = {"type": "image", "source": {"type": "base64", "data": "A" * 100_000}}
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": [image, {"type": "text", "text": LONG}]}],
    }
    request = await read("/v1/messages", body, engine="trtllm")
    assert 100 < request.reckoned_tokens < 200
    request = await read("/v1/completions", {"prompt": [[1] * 300, [1] * 200]})
    assert 500 <= request.reckoned_tokens < 510
    request = await read("/v1/completions", {"prompt": [[1] * 30_000, [1]]})
    assert request.reckoned_tokens == LIMITS.max_prompt_tokens


FORM = (
    b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n'
    b'\x00\xff{"model":"no"}\r\n--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n--x--\r\n'
)


@pytest.mark.parametrize(
    ("body", "kind", "encoding", "because", "model"),
    [
        (gzip.compress(json.dumps(CHAT).encode(), mtime=0), JSON, "gzip", Unread.BODY_ENCODED, ""),
        (gzip.compress(b"\0" * 10_000_000, mtime=0), JSON, "x-gzip, br", Unread.BODY_ENCODED, ""),
        (gzip.compress(json.dumps(CHAT).encode(), mtime=0), JSON, "", Unread.BODY_NOT_JSON, ""),
        (json.dumps(CHAT).encode("utf-16"), JSON, "", Unread.BODY_NOT_JSON, ""),
        (json.dumps(CHAT).encode("utf-8-sig"), JSON, "", Unread.BODY_NOT_JSON, "m"),
        (json.dumps(CHAT).encode()[:-9], JSON, "", Unread.BODY_NOT_JSON, "m"),
        (json.dumps(CHAT).encode(), "text/plain", "", Unread.BODY_NOT_JSON, "m"),
        (b'{"model":"m","messages":[{"role":"user","content":"\xff"}]}', JSON, "", None, "m"),
        (b'{"model":"m","messages":"\\ud800"}', JSON, "", Unread.BODY_NOT_JSON, "m"),
        (b'{"model":"m","max_tokens":NaN}', JSON, "", Unread.BODY_NOT_JSON, "m"),
        (b'{"model":"a","model":"m","messages":[]}', JSON, "", None, "m"),
        (b'{"model":"m","messages":' + b"[" * 60_000, JSON, "", Unread.BODY_NOT_JSON, "m"),
        (b'{"model":"m","messages":' + b"[" * 100_000, JSON, "", Unread.BODY_TOO_LARGE, "m"),
        (b'{"model":"m","messages":' + b"[" * 5000 + b"]" * 5000 + b"}", JSON, "", Unread.BODY_NOT_JSON, "m"),
        (b'{"model":"m","messages":' + b'[{"a":' * 300_000, JSON, "", Unread.BODY_TOO_LARGE, "m"),
        (b'{"model":"m","messages":"' + b"x" * (2 << 20) + b'"}', JSON, "", Unread.BODY_TOO_LARGE, "m"),
        (b'{"messages":"' + b"x" * (2 << 20) + b'","model":"m"}', JSON, "", Unread.BODY_TOO_LARGE, ""),
        (b'{"model":"m","messages":[' + b"1," * MOST_VALUES + b"1]}", JSON, "", Unread.BODY_TOO_LARGE, "m"),
        (b'{"model":"m","x":' + b"1" * 400_000 + b"}", JSON, "", Unread.BODY_TOO_LARGE, "m"),
        (b"[]", JSON, "", Unread.BODY_NOT_JSON, ""),
        (b"", JSON, "", Unread.BODY_NOT_JSON, ""),
        (b'{"model":"%b","messages":[]}' % (b"m" * 2000), JSON, "", None, ""),
        (FORM, "multipart/form-data; boundary=x", "", Unread.BODY_NOT_JSON, "whisper"),
    ],
)  # fmt: skip
async def test_hostile_bodies_are_routed_by_load(
    body: bytes, kind: str, encoding: str, because: Unread | None, model: str
) -> None:
    request = await read("/v1/chat/completions", body, kind, encoding)
    assert (request.unread_because, request.model) == (because, model)
    assert request.reckoned_tokens <= LIMITS.max_prompt_tokens


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
async def test_a_body_of_any_depth_is_a_request(engine: str) -> None:
    for depth in (10, 400, *range(900, 1010, 3)):
        deep = '{"a":' * depth + "1" + "}" * depth
        use = f'{{"type":"tool_use","id":"x","name":"f","input":{deep}}}'
        for path, body in (
            ("/v1/messages", f'{{"messages":[{{"role":"assistant","content":[{use}]}}]}}'),
            ("/v1/messages", f'{{"messages":[],"tools":[{{"name":"f","input_schema":{deep}}}]}}'),
            ("/v1/responses", f'{{"input":"x","chat_template_kwargs":{deep}}}'),
        ):
            request = await reader(engine).read(path, body.encode(), JSON)
            assert (request.prompt is None) == (request.unread_because is not None)


async def test_a_form_tells_its_model() -> None:
    request = await read("/v1/audio/transcriptions", FORM, "multipart/form-data; boundary=x")
    assert (request.api, request.model, request.unread_because) == (
        "audio",
        "whisper",
        Unread.NO_PREFIX,
    )
    for form in (
        FORM.replace(b'{"model":"no"}', b"\0" * 900_000),
        b"--x\r\n"
        + FORM.partition(b"\r\n--x\r\n")[2].partition(b"--x--")[0]
        + FORM.replace(b"whisper", b"other"),
        FORM.replace(b'name="model"\r\n', b"name=model\r\nContent-Type: text/plain\r\n"),
    ):
        assert (
            await read("/v1/audio/transcriptions", form, "multipart/form-data")
        ).model == "whisper"
    for unit in (b"; name=model\n", b"; name=model\n\n", b"; name=model\n" + b"x\n" * 9):
        assert (
            await read("/v1/audio/translations", unit * 40_000, "multipart/form-data")
        ).model == ""
    long = FORM.replace(b"whisper", b"m" * 2000)
    assert (await read("/v1/audio/translations", long, "multipart/form-data")).model == ""


PATH = st.sampled_from([f"/{path}" for path in PATHS])
KIND = st.sampled_from(
    [JSON, "", "multipart/form-data; boundary=x", "text/plain", "application/x+json"]
)


@given(PATH, st.binary(max_size=300), KIND)
async def test_any_bytes_are_a_request(path: str, body: bytes, kind: str) -> None:
    request = await read(path, body, kind)
    assert (request.prompt is None) == (request.unread_because is not None)


LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 1 << 70), st.floats(), st.text(max_size=5)
)
ANYTHING = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["type", "role", "content", "text", "id", "name", "input", "source", "function"]),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=12,
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values within a value."""
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [path, *(one for key, item in inner for one in places(item, (*path, key)))]


def replaced(value: Any, path: tuple[Any, ...], by: Any) -> Any:
    if not path:
        return by
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], by)
    return copy


@given(st.data(), st.sampled_from(["vllm", "sglang"]), st.sampled_from([TRAITS, None]))
@pytest.mark.random
async def test_any_fields_are_a_request(
    data: st.DataObject, engine: str, traits: TemplateTraits | None
) -> None:
    path, body = data.draw(st.sampled_from(BODIES))
    at = data.draw(st.sampled_from(places(body)))
    damaged = replaced(body, at, data.draw(ANYTHING))
    raw = json.dumps(damaged).encode()
    request = await reader(engine, traits).read(path, raw, JSON)
    assert (request.prompt is None) == (request.unread_because is not None)
    assert request.prompt is None or request.problem == ""


@given(st.data())
@pytest.mark.random
async def test_a_truncated_request_is_a_request(data: st.DataObject) -> None:
    line = data.draw(st.sampled_from(VLLM))
    raw = line["request"].encode()
    request = await read(line["path"], raw[: data.draw(st.integers(0, len(raw) - 1))])
    assert request.unread_because == Unread.BODY_NOT_JSON
