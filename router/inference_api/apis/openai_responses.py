"""OpenAI's responses API, /v1/responses: the engine makes a chat of the body, each engine its own."""

from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.inference_api.apis.api import Api
from warmpath.router.inference_api.body import Body
from warmpath.router.inference_api.chats.chat_prompt import chat_prompt
from warmpath.router.inference_api.chats.sglang_responses import sglang_responses
from warmpath.router.inference_api.chats.vllm_responses import vllm_responses

CHATS = {"vllm": vllm_responses, "sglang": sglang_responses}
FIELDS = (
    *("input", "instructions", "tools", "reasoning", "truncation", "previous_response_id"),
    *("previous_input_messages", "prompt", "chat_template_kwargs", "cache_salt"),
    "extra_key",
)


async def _most_output_tokens(body: Body) -> int | None:
    return await body.count("max_output_tokens")


async def _prompt(body: Body) -> pb.Prompt:
    return await chat_prompt(body, CHATS, FIELDS)


OPENAI_RESPONSES = Api(
    "openai-responses", (*FIELDS, "max_output_tokens"), _most_output_tokens, _prompt
)
