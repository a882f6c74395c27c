"""SGLang's own API, /generate: a text or token ids. Its body names no model.

Follows SGLang 0.5.23, `srt/managers/io_struct.py` (`GenerateReqInput`).
"""

from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.inference_api.body import Api, Body
from warmpath.router.inference_api.request import UnreadError, not_allowed, not_exact

UNREAD = (
    *("input_embeds", "image_data", "video_data", "audio_data", "positional_embed_overrides"),
    "session_params",
)
"""Fields that put something else than the text's or the ids' tokens into the prompt."""


async def _prompt(body: Body) -> pb.Prompt:
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


SGLANG_GENERATE = Api(
    fields=(
        *("text", "input_ids", "return_logprob", "logprob_start_len"),
        *("lora_path", "cache_salt", "extra_key", *UNREAD),
    ),
    prompt=_prompt,
    has_ids=True,
)
