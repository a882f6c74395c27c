"""The inference APIs by path: OpenAI's, and others that each engine turns into chats in its own way.

Paths of vLLM 0.32, SGLang 0.5.23 and TensorRT-LLM, and of Ollama's API, which SGLang has too. Engines'
own APIs are vLLM's /inference/v1/generate and SGLang's /generate. The first has token ids, with the
places of their media; it follows vLLM 0.32, `entrypoints/scale_out/token_in_token_out/protocol.py`
(`GenerateRequest`). The second has a text or token ids, and names no model; it follows SGLang 0.5.23,
`srt/managers/io_struct.py` (`GenerateReqInput`).
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeAlias

import msgspec

from warmpath.prefixstore.chats.chat import TemplateTraits
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.inference_api.body import Api, Body
from warmpath.router.inference_api.chats.sglang import sglang_messages, sglang_responses
from warmpath.router.inference_api.chats.vllm_messages import vllm_messages
from warmpath.router.inference_api.chats.vllm_responses import vllm_responses
from warmpath.router.inference_api.request import (
    MadeChat,
    UnreadError,
    list_of,
    not_allowed,
    not_exact,
    object_of,
)
from warmpath.router.prompt.bodies.fields import LARGE_BYTES
from warmpath.router.prompt.bodies.openai import OF_CHATS, OF_COMPLETIONS, prompts
from warmpath.router.prompt.limits import MOST_ENTRIES

UNREAD = (
    *("input_embeds", "image_data", "video_data", "audio_data", "positional_embed_overrides"),
    "session_params",
)
"""Fields that put other tokens into the prompt than those of the text or the ids."""


async def _vllm(body: Body) -> pb.Prompt:
    if body.has("content_parts"):
        raise not_exact("the engine puts media of its own into the prompt")
    if not (ids := await body.ids("token_ids", body.limits.max_prompt_tokens)):
        raise not_allowed("token_ids is no list of token ids")
    sampling = await body.decoded("sampling_params")
    if isinstance(sampling, dict) and sampling.get("prompt_logprobs") is not None:
        raise UnreadError("prompt_logprobs need every token computed")
    return pb.Prompt(
        model=await body.name("model"),
        token_ids_packed=ids,
        cache_salt=await body.word("cache_salt"),
        multimodal=_items(await body.decoded("features")),
    )


def _items(features: Any) -> list[pb.MultimodalItem]:
    if features is None:
        return []
    found = object_of(features, "features")
    hashes = object_of(found.get("mm_hashes"), "mm_hashes")
    places = object_of(found.get("mm_placeholders"), "mm_placeholders")
    items: list[pb.MultimodalItem] = []
    for modality in hashes:
        names = list_of(hashes[modality], "mm_hashes")
        ranges = list_of(places.get(modality), "mm_placeholders")
        if len(names) != len(ranges):
            raise not_allowed("mm_hashes and mm_placeholders have different lengths")
        items += [_item(name, place) for name, place in zip(names, ranges, strict=True)]
        if len(items) > MOST_ENTRIES:
            raise UnreadError(f"more than {MOST_ENTRIES} media")
    return sorted(items, key=lambda item: item.offset)


def _item(name: Any, place: Any) -> pb.MultimodalItem:
    given = object_of(place, "mm_placeholders")
    try:
        return pb.MultimodalItem(hash=name, offset=given["offset"], length=given["length"])
    except (KeyError, TypeError, ValueError) as error:
        raise not_allowed("a medium has no hash, or its place is no range") from error


async def _sglang(body: Body) -> pb.Prompt:
    for name in UNREAD:
        if body.has(name):
            raise not_exact(f"{name} is given")
    if await body.decoded("return_logprob") and await body.decoded("logprob_start_len") not in (
        None,
        -1,
    ):
        raise UnreadError("logprobs of the prompt need its tokens computed")
    prompt = pb.Prompt(
        lora=await body.word("lora_path"),
        cache_salt=await body.word("cache_salt"),
        extra_key=await body.word("extra_key"),
    )
    if body.has("text") and body.has("input_ids"):
        raise not_allowed("both text and input_ids are given")
    if body.is_list("text"):
        raise UnreadError("text is a list")
    text = await body.decoded("text")
    if isinstance(text, str) and text:
        prompt.text = text
    elif body.is_list("input_ids"):
        ids = await body.ids("input_ids", body.limits.max_prompt_tokens)
        if ids is None:
            raise UnreadError("input_ids holds lists")
        prompt.token_ids_packed = ids
    else:
        raise not_allowed("neither text nor input_ids is given")
    return prompt


VLLM_GENERATE = Api(
    fields=("token_ids", "sampling_params", "features", "content_parts", "cache_salt"),
    prompt=_vllm,
    has_ids=True,
)
SGLANG_GENERATE = Api(
    fields=(
        *("text", "input_ids", "return_logprob", "logprob_start_len"),
        *("lora_path", "cache_salt", "extra_key", *UNREAD),
    ),
    prompt=_sglang,
    has_ids=True,
)


async def _openai_chat(body: Body) -> pb.Prompt:
    if not body.has("messages"):
        raise UnreadError("the body has no messages")
    return pb.Prompt(chat_body=body.raw)


async def _completion(body: Body) -> pb.Prompt:
    if not body.has("prompt"):
        raise UnreadError("the body has no prompt")
    if (given := len(prompts(body.fields["prompt"]))) > 1:
        raise UnreadError(f"the body has {given} prompts")
    return pb.Prompt(completions_body=body.raw)


OPENAI_CHAT = Api(("messages",), _openai_chat, parsed=OF_CHATS)
OPENAI_COMPLETIONS = Api(("prompt",), _completion, has_ids=True, parsed=OF_COMPLETIONS)

Chat: TypeAlias = Callable[[Mapping[str, Any], TemplateTraits | None], MadeChat]
"""Returns the chat that an engine makes of a body. Raises UnreadError."""

_encode = msgspec.json.Encoder().encode


def chat_api(*fields: str, **chats: Chat) -> Api:
    """Return an API of whose `fields` engines make chats; `chats` has the function of each engine."""
    return Api(fields, partial(_prompt, fields, chats), makes_chat=True)


async def _prompt(fields: Iterable[str], chats: Mapping[str, Chat], body: Body) -> pb.Prompt:
    model = await body.name("model")
    engine = body.engine_of(model)
    if engine not in chats:
        raise not_exact(f"how {engine or 'the engine'} reads this API")
    given = {name: await body.decoded(name) for name in fields}
    messages, others = chats[engine](given, await body.traits_of(model))
    return pb.Prompt(model=model, chat_body=await _body(messages, others))


async def _body(messages: Iterable[Any], fields: Mapping[str, Any]) -> bytes:
    parts: list[bytes] = []
    pending = 0
    for message in messages:
        parts.append(_encode(message))
        pending += len(parts[-1])
        if pending > LARGE_BYTES:
            pending = 0
            await asyncio.sleep(0)
    fields = {name: value for name, value in fields.items() if value is not None}
    others = b"," + _encode(fields)[1:] if fields else b"}"
    return b'{"messages":[%b]%b' % (b",".join(parts), others)


OPENAI_RESPONSES = chat_api(
    *("input", "instructions", "tools", "reasoning", "truncation", "previous_response_id"),
    *("previous_input_messages", "prompt", "chat_template_kwargs", "cache_salt", "extra_key"),
    vllm=vllm_responses,
    sglang=sglang_responses,
)
ANTHROPIC_MESSAGES = chat_api(
    *("messages", "system", "tools", "thinking", "output_config"),
    *("chat_template_kwargs", "cache_salt"),
    vllm=vllm_messages,
    sglang=sglang_messages,
)
UNKNOWN = "no API with this path is known"
EMBEDDINGS = "embeddings are computed whole"
SCORES = "scores and classes of texts are computed whole"
TOKENS = "counting tokens computes none"
AUDIO = "the prompt is a sound"
MEDIA = "the answer is an image or a film"
BATCH = "the body has a list of chats"
OTHERS = "how the engine reads this API is not known here"

PATHS: dict[str, Api | str] = {
    "v1/chat/completions": OPENAI_CHAT,
    "v1/completions": OPENAI_COMPLETIONS,
    "v1/responses": OPENAI_RESPONSES,
    "v1/messages": ANTHROPIC_MESSAGES,
    "inference/v1/generate": VLLM_GENERATE,
    "generate": SGLANG_GENERATE,
    **dict.fromkeys(("v1/embeddings", "v2/embed", "pooling", "encode"), EMBEDDINGS),
    **dict.fromkeys(("score", "v1/score", "classify", "v1/classify"), SCORES),
    **dict.fromkeys(("rerank", "v1/rerank", "v2/rerank", "generative_scoring"), SCORES),
    **dict.fromkeys(("tokenize", "detokenize", "v1/messages/count_tokens"), TOKENS),
    **dict.fromkeys(("v1/tokenize", "v1/detokenize"), TOKENS),
    **dict.fromkeys(("v1/chat/completions/render", "v1/completions/render"), TOKENS),
    **dict.fromkeys(("v1/responses/render", "v1/messages/render"), TOKENS),
    **dict.fromkeys(("v1/audio/transcriptions", "v1/audio/translations"), AUDIO),
    "v1/audio/speech": AUDIO,
    **dict.fromkeys(("v1/images/generations", "v1/images/edits"), MEDIA),
    **dict.fromkeys(("v1/videos", "v1/videos/generations"), MEDIA),
    "v1/chat/completions/batch": BATCH,
    **dict.fromkeys(("v2/chat", "api/generate", "api/chat", "invocations"), OTHERS),
    "vertex_generate": OTHERS,
}
"""Each API by the end of its path: gateways serve engines below prefixes of their own. In place of one
whose requests never have a prompt for a pick: why they have none."""

MOST_SEGMENTS = max(path.count("/") + 1 for path in PATHS)


def api_of(path: str) -> Api | str:
    """Return the value in PATHS for the end of a path, without its query and a slash at its end."""
    segments = path.partition("?")[0].rstrip("/").rsplit("/", MOST_SEGMENTS)[-MOST_SEGMENTS:]
    for at in range(len(segments)):
        if found := PATHS.get("/".join(segments[at:])):
            return found
    return UNKNOWN
