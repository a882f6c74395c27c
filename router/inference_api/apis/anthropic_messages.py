"""Anthropic's messages API, /v1/messages: each engine makes a chat of the body in its own way."""

from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.inference_api.apis.api import Api
from warmpath.router.inference_api.body import Body
from warmpath.router.inference_api.chats.chat_prompt import chat_prompt
from warmpath.router.inference_api.chats.sglang import sglang_messages
from warmpath.router.inference_api.chats.vllm_messages import vllm_messages

CHATS = {"vllm": vllm_messages, "sglang": sglang_messages}
FIELDS = (
    *("messages", "system", "tools", "thinking", "output_config"),
    *("chat_template_kwargs", "cache_salt"),
)


async def _most_output_tokens(body: Body) -> int | None:
    return await body.count("max_tokens")


async def _prompt(body: Body) -> pb.Prompt:
    return await chat_prompt(body, CHATS, FIELDS)


ANTHROPIC_MESSAGES = Api(
    "anthropic-messages", (*FIELDS, "max_tokens"), _most_output_tokens, _prompt
)
