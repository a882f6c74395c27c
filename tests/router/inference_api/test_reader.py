"""Every request is read or routed by load with a named reason; no body is an error."""

import gzip
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.router.inference_api.recorded_apis import VLLM
from tests.vllm.api_bodies import BODIES, HI, places
from warmpath.indexer.keys.key import pack_tokens
from warmpath.prefixstore.chats.chat import TemplateTraits
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.inference_api import apis
from warmpath.router.inference_api.apis import PATHS, api_of
from warmpath.router.inference_api.body import Api
from warmpath.router.inference_api.reader import InferenceReader
from warmpath.router.inference_api.request import InferenceRequest
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
        ("/v1/chat/completions", apis.OPENAI_CHAT),
        ("/v1/completions", apis.OPENAI_COMPLETIONS),
        ("/v1/responses", apis.OPENAI_RESPONSES),
        ("/v1/messages", apis.ANTHROPIC_MESSAGES),
        ("/v1/messages?beta=true", apis.ANTHROPIC_MESSAGES),
        ("/v1/chat/completions/", apis.OPENAI_CHAT),
        ("/team-a/generate//?x=/", apis.SGLANG_GENERATE),
        ("/generate", apis.SGLANG_GENERATE),
        ("/inference/v1/generate", apis.VLLM_GENERATE),
        ("/team-a/llms/openai/v1/chat/completions", apis.OPENAI_CHAT),
        ("/v1/chat/completions/batch", apis.BATCH),
        ("/v1/chat/completions/render", apis.TOKENS),
        ("/v1/messages/count_tokens", apis.TOKENS),
        ("/v1/embeddings", apis.EMBEDDINGS),
        ("/pooling", apis.EMBEDDINGS),
        ("/v1/score", apis.SCORES),
        ("/rerank", apis.SCORES),
        ("/v2/rerank", apis.SCORES),
        ("/v1/audio/transcriptions", apis.AUDIO),
        ("/api/generate", apis.OTHERS),
        ("/cohere/v2/chat", apis.OTHERS),
        ("/v1/chat/completionsx", apis.UNKNOWN),
        ("/v1/chat/completions/x", apis.UNKNOWN),
        ("/xgenerate", apis.UNKNOWN),
        ("/", apis.UNKNOWN),
        ("", apis.UNKNOWN),
        ("?/v1/completions", apis.UNKNOWN),
        ("/" * 10_000, apis.UNKNOWN),
        ("/é\ud800", apis.UNKNOWN),
    ],
)
async def test_a_path_tells_the_api(path: str, api: Api | str) -> None:
    assert api_of(path) is api
    request = await read(path, CHAT)
    assert request.model == "m"
    assert bool(request.problem) == (request.prompt is None)
    assert not isinstance(api, str) or request.problem == api


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
UNREAD: list[tuple[str, Any, str]] = [
    ("/v1/chat/completions", {"model": "m"}, "the body has no messages"),
    ("/v1/chat/completions", {"model": "m", "messages": None}, "the body has no messages"),
    ("/v1/completions", {"model": "m"}, "the body has no prompt"),
    ("/v1/completions", {"model": "m", "prompt": [LONG, LONG]}, "the body has 2 prompts"),
    ("/v1/completions", {"model": "m", "prompt": [[1, 2], [3]]}, "the body has 2 prompts"),
    ("/v1/responses", {"model": "m", "input": "x", "previous_response_id": "r"}, "previous_response_id is given"),
    ("/v1/responses", {"model": "m", "input": {}}, "input is no list"),
    ("/v1/messages", {"model": "m", "messages": "x"}, "messages is no list"),
    ("/v1/messages", {"model": "m", "messages": [HI], "cache_salt": "s" * 2000}, ""),
    ("/generate", {"text": ["a", "b"]}, "text is a list"),
    ("/generate", {"input_ids": [[1], [2]]}, "input_ids holds lists"),
    ("/generate", {"text": "a", "input_ids": [1]}, "both text and input_ids are given"),
    ("/generate", {"input_embeds": [[0.1]]}, "input_embeds is given"),
    ("/generate", {"text": "a", "image_data": "x"}, "image_data is given"),
    ("/generate", {"text": "a", "return_logprob": True, "logprob_start_len": 0}, "logprobs of the prompt need its tokens computed"),
    ("/generate", {"inputs": "a", "parameters": {}}, "neither text nor input_ids is given"),
    ("/generate", {"text": "a", "cache_salt": "s" * 2000}, "cache_salt is longer than 1024 bytes"),
    ("/generate", {"text": "a", "lora_path": ["x"]}, "lora_path is no text"),
    ("/inference/v1/generate", {"token_ids": []}, "token_ids is no list of token ids"),
    ("/inference/v1/generate", {"token_ids": ["a"]}, "token_ids is no list of token ids"),
    ("/inference/v1/generate", {"token_ids": [1], "content_parts": [{}]}, "the engine puts media of its own into the prompt"),
    ("/inference/v1/generate", {"token_ids": [1], "sampling_params": {"prompt_logprobs": 1}}, "prompt_logprobs need every token computed"),
    ("/inference/v1/generate", {"token_ids": [1], "features": {"mm_hashes": {"a": ["x"]}}}, "mm_placeholders is no object"),
    ("/inference/v1/generate", {"token_ids": [1], "features": {"mm_hashes": {"a": ["x"]}, "mm_placeholders": {"a": [{"offset": -1, "length": 1}]}}}, "a medium has no hash, or its place is no range"),
    ("/inference/v1/generate", {"token_ids": [1], "features": {"mm_hashes": {"a": [7]}, "mm_placeholders": {"a": [{"offset": 0, "length": 1}]}}}, "a medium has no hash, or its place is no range"),
    ("/inference/v1/generate", {"token_ids": [1] * 2000}, "token_ids has 2000 tokens; limits.max-prompt-tokens is 1000"),
    ("/v1/embeddings", {"model": "m", "input": [LONG]}, "embeddings are computed whole"),
    ("/v1/chat/completions", CHAT | {"x": [0] * (MOST_VALUES + 1)}, "the body holds more than 65536 values"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "because"), UNREAD, ids=str)
async def test_a_body_without_a_prompt_has_a_reason(path: str, body: Any, because: str) -> None:
    request = await read(path, body)
    assert because in request.problem
    assert bool(request.problem) == bool(because)
    assert request.model == body.get("model", "")
    if because:
        assert request.prompt is None
        assert "word" not in request.problem


@pytest.mark.parametrize("engine", ["trtllm", ""])
@pytest.mark.parametrize(("path", "body"), [*BODIES[:3], ("/v1/responses", {"input": "x"})])
async def test_an_engine_whose_chats_are_not_known_is_not_guessed_at(
    engine: str, path: str, body: dict[str, Any]
) -> None:
    request = await read(path, body, engine=engine)
    assert request.problem.startswith("the engine's tokens are not known: how ")
    assert 0 < request.estimated_tokens < 200


async def test_without_its_template_a_body_that_depends_on_it_is_not_read() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    for path, body in (
        ("/v1/messages", CHAT | {"messages": [HI, {"role": "system", "content": "s"}, HI]}),
        ("/v1/messages", CHAT | {"thinking": {"type": "disabled"}}),
        ("/v1/responses", {"input": [HI, call]}),
    ):
        assert (await read(path, body)).prompt is not None
        unread = await read(path, body, traits=None)
        assert unread.problem.startswith("the engine's tokens are not known: ")


async def test_what_is_no_text_is_not_estimated() -> None:
    image = {"type": "image", "source": {"type": "base64", "data": "A" * 100_000}}
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": [image, {"type": "text", "text": LONG}]}],
    }
    request = await read("/v1/messages", body, engine="trtllm")
    assert 100 < request.estimated_tokens < 200
    request = await read("/v1/completions", {"prompt": [[1] * 300, [1] * 200]})
    assert 500 <= request.estimated_tokens < 510
    request = await read("/v1/completions", {"prompt": [[1] * 30_000, [1]]})
    assert request.estimated_tokens == LIMITS.max_prompt_tokens


FORM = (
    b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n'
    b'\x00\xff{"model":"no"}\r\n--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n--x--\r\n'
)


@pytest.mark.parametrize(
    ("body", "kind", "encoding", "because", "model"),
    [
        (gzip.compress(json.dumps(CHAT).encode(), mtime=0), JSON, "gzip", "the body is compressed", ""),
        (gzip.compress(b"\0" * 10_000_000, mtime=0), JSON, "x-gzip, br", "the body is compressed", ""),
        (gzip.compress(json.dumps(CHAT).encode(), mtime=0), JSON, "", "the body is not JSON", ""),
        (json.dumps(CHAT).encode("utf-16"), JSON, "", "the body is not JSON", ""),
        (json.dumps(CHAT).encode("utf-8-sig"), JSON, "", "the body is not JSON", "m"),
        (json.dumps(CHAT).encode()[:-9], JSON, "", "the body is not JSON", "m"),
        (json.dumps(CHAT).encode(), "text/plain", "", "the content type is not JSON", "m"),
        (b'{"model":"m","messages":[{"role":"user","content":"\xff"}]}', JSON, "", "", "m"),
        (b'{"model":"m","messages":"\\ud800"}', JSON, "", "the body is not JSON", "m"),
        (b'{"model":"m","max_tokens":NaN}', JSON, "", "the body is not JSON", "m"),
        (b'{"model":"a","model":"m","messages":[]}', JSON, "", "", "m"),
        (b'{"model":"m","messages":' + b"[" * 60_000, JSON, "", "the body is not JSON", "m"),
        (b'{"model":"m","messages":' + b"[" * 100_000, JSON, "", "the body holds more than 65536 values", "m"),
        (b'{"model":"m","messages":' + b"[" * 5000 + b"]" * 5000 + b"}", JSON, "", "the body is not JSON", "m"),
        (b'{"model":"m","messages":' + b'[{"a":' * 300_000, JSON, "", "the body has 1800024 bytes or more; limits.max-prompt-bytes is 1048576", "m"),
        (b'{"model":"m","messages":"' + b"x" * (2 << 20) + b'"}', JSON, "", "the body has 2097179 bytes or more; limits.max-prompt-bytes is 1048576", "m"),
        (b'{"messages":"' + b"x" * (2 << 20) + b'","model":"m"}', JSON, "", "the body has 2097179 bytes or more; limits.max-prompt-bytes is 1048576", ""),
        (b'{"model":"m","messages":[' + b"1," * MOST_VALUES + b"1]}", JSON, "", "the body holds more than 65536 values", "m"),
        (b'{"model":"m","x":' + b"1" * 400_000 + b"}", JSON, "", "the body holds a number of more than 32768 bytes", "m"),
        (b"[]", JSON, "", "the body is not a JSON object", ""),
        (b"", JSON, "", "the body is not JSON", ""),
        (b'{"model":"%b","messages":[]}' % (b"m" * 2000), JSON, "", "", ""),
        (FORM, "multipart/form-data; boundary=x", "", "the body is a form", "whisper"),
    ],
)  # fmt: skip
async def test_hostile_bodies_are_routed_by_load(
    body: bytes, kind: str, encoding: str, because: str, model: str
) -> None:
    request = await read("/v1/chat/completions", body, kind, encoding)
    assert because in request.problem
    assert (bool(request.problem), request.model) == (bool(because), model)
    assert request.estimated_tokens <= LIMITS.max_prompt_tokens


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
            assert (request.prompt is None) == bool(request.problem)


async def test_a_form_tells_its_model() -> None:
    request = await read("/v1/audio/transcriptions", FORM, "multipart/form-data; boundary=x")
    assert (request.model, request.problem) == ("whisper", apis.AUDIO)
    first = FORM.partition(b"\r\n--x\r\n")[2].partition(b"--x--")[0]
    units = (b"; name=model\n", b"; name=model\n\n", b"; name=model\n" + b"x\n" * 9)
    for form, model in (
        (FORM.replace(b'{"model":"no"}', b"\0" * 900_000), "whisper"),
        (b"--x\r\n" + first + FORM.replace(b"whisper", b"other"), "whisper"),
        (
            FORM.replace(b'name="model"\r\n', b"name=model\r\nContent-Type: text/plain\r\n"),
            "whisper",
        ),
        *((unit * 40_000, "") for unit in units),
        (FORM.replace(b"whisper", b"m" * 2000), ""),
    ):
        request = await read("/v1/audio/translations", form, "multipart/form-data")
        assert request.model == model


PATH = st.sampled_from([f"/{path}" for path in PATHS])
KIND = st.sampled_from(
    [JSON, "", "multipart/form-data; boundary=x", "text/plain", "application/x+json"]
)


@given(PATH, st.binary(max_size=300), KIND)
async def test_any_bytes_are_a_request(path: str, body: bytes, kind: str) -> None:
    request = await read(path, body, kind)
    assert (request.prompt is None) == bool(request.problem)


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
    at = data.draw(st.sampled_from([*places(body)]))
    damaged = replaced(body, at, data.draw(ANYTHING))
    raw = json.dumps(damaged).encode()
    request = await reader(engine, traits).read(path, raw, JSON)
    assert (request.prompt is None) == bool(request.problem)


@given(st.data())
@pytest.mark.random
async def test_a_truncated_request_is_a_request(data: st.DataObject) -> None:
    line = data.draw(st.sampled_from(VLLM))
    raw = line["request"].encode()
    request = await read(line["path"], raw[: data.draw(st.integers(0, len(raw) - 1))])
    assert "is not JSON" in request.problem
