"""Engines' own APIs: vLLM's /inference/v1/generate and SGLang's /generate.

The first has token ids, with the places of their media; it follows vLLM 0.32,
`entrypoints/scale_out/token_in_token_out/protocol.py` (`GenerateRequest`). The second has a text or
token ids, and names no model; it follows SGLang 0.5.23, `srt/managers/io_struct.py`
(`GenerateReqInput`).
"""

from typing import Any

from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.inference_api.body import Api, Body
from warmpath.router.inference_api.request import (
    UnreadError,
    list_of,
    not_allowed,
    not_exact,
    object_of,
)
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
