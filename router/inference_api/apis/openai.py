"""OpenAI's chat API, /v1/chat/completions: the body is a pick's `chat_body`, byte for byte."""

from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.inference_api.apis.api import Api
from warmpath.router.inference_api.body import Body
from warmpath.router.inference_api.request import Unread, UnreadError


async def _most_output_tokens(body: Body) -> int | None:
    # Both engines prefer the newer name.
    return await body.count("max_completion_tokens") or await body.count("max_tokens")


async def _prompt(body: Body) -> pb.Prompt:
    if not body.has("messages"):
        raise UnreadError(Unread.NO_PROMPT, "the body has no messages")
    return pb.Prompt(chat_body=body.raw)


OPENAI_CHAT = Api(
    name="openai-chat",
    fields=("max_completion_tokens", "max_tokens", "messages"),
    most_output_tokens=_most_output_tokens,
    prompt=_prompt,
)
