"""OpenAI's APIs: a chat's or a completion's body goes into the pick byte for byte.

Of a response's body each engine makes a chat in its own way.
"""

from functools import partial

import msgspec

from warmpath.process.bytes import UNREADABLE
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.inference_api.apis.api import Api
from warmpath.router.inference_api.body import Body
from warmpath.router.inference_api.chats.chat_prompt import chat_prompt
from warmpath.router.inference_api.chats.sglang import sglang_responses
from warmpath.router.inference_api.chats.vllm_responses import vllm_responses
from warmpath.router.inference_api.request import Unread, UnreadError

RESPONSES = {"vllm": vllm_responses, "sglang": sglang_responses}
OF_RESPONSES = (
    *("input", "instructions", "tools", "reasoning", "truncation", "previous_response_id"),
    *("previous_input_messages", "prompt", "chat_template_kwargs", "cache_salt"),
    "extra_key",
)


async def _chat(body: Body) -> pb.Prompt:
    if not body.has("messages"):
        raise UnreadError(Unread.NO_PROMPT, "the body has no messages")
    return pb.Prompt(chat_body=body.raw)


async def _completion(body: Body) -> pb.Prompt:
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


OPENAI_CHAT = Api("openai-chat", ("messages",), _chat)
OPENAI_COMPLETIONS = Api("openai-completions", ("prompt",), _completion, has_ids=True)
OPENAI_RESPONSES = Api(
    "openai-responses", OF_RESPONSES, partial(chat_prompt, chats=RESPONSES, fields=OF_RESPONSES)
)
