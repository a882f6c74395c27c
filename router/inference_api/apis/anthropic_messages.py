"""Anthropic's messages API, /v1/messages: each engine makes a chat of the body in its own way."""

from functools import partial

from warmpath.router.inference_api.apis.api import Api
from warmpath.router.inference_api.chats.chat_prompt import chat_prompt
from warmpath.router.inference_api.chats.sglang import sglang_messages
from warmpath.router.inference_api.chats.vllm_messages import vllm_messages

CHATS = {"vllm": vllm_messages, "sglang": sglang_messages}
FIELDS = (
    *("messages", "system", "tools", "thinking", "output_config"),
    *("chat_template_kwargs", "cache_salt"),
)
ANTHROPIC_MESSAGES = Api(
    "anthropic-messages", FIELDS, partial(chat_prompt, chats=CHATS, fields=FIELDS)
)
