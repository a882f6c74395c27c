"""OpenAI's completions API, /v1/completions: the body is a pick's `completions_body`, byte for byte."""

import msgspec

from warmpath.process.bytes import UNREADABLE
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.inference_api.apis.api import Api
from warmpath.router.inference_api.body import Body
from warmpath.router.inference_api.request import Unread, UnreadError


async def _most_output_tokens(body: Body) -> int | None:
    return await body.count("max_tokens")


async def _prompt(body: Body) -> pb.Prompt:
    if not body.has("prompt"):
        raise UnreadError(Unread.NO_PROMPT, "the body has no prompt")
    raw = memoryview(body.fields.fields["prompt"])
    # The first bytes show whether a list has prompts or token ids, of which there may be a million.
    if raw[0] == ord("[") and bytes(raw[1:1024]).lstrip()[:1] in (b"[", b'"'):
        try:
            prompts = msgspec.json.decode(raw, type=list[msgspec.Raw])
        except UNREADABLE as error:
            raise UnreadError(Unread.BODY_NOT_JSON, "the prompt is not JSON") from error
        if len(prompts) > 1:
            raise UnreadError(Unread.SEVERAL_PROMPTS, f"the body has {len(prompts)} prompts")
    return pb.Prompt(completions_body=body.raw)


OPENAI_COMPLETIONS = Api(
    name="openai-completions",
    fields=("max_tokens", "prompt"),
    most_output_tokens=_most_output_tokens,
    prompt=_prompt,
    has_ids=True,
)
