"""OpenAI's chats and completions, whose bodies go into the pick byte for byte."""

from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.inference_api.body import Api, Body
from warmpath.router.inference_api.request import UnreadError
from warmpath.router.prompt.bodies.openai import prompts


async def _chat(body: Body) -> pb.Prompt:
    if not body.has("messages"):
        raise UnreadError("the body has no messages")
    return pb.Prompt(chat_body=body.raw)


async def _completion(body: Body) -> pb.Prompt:
    if not body.has("prompt"):
        raise UnreadError("the body has no prompt")
    if (given := len(prompts(body.fields["prompt"]))) > 1:
        raise UnreadError(f"the body has {given} prompts")
    return pb.Prompt(completions_body=body.raw)


OPENAI_CHAT = Api(("messages",), _chat)
OPENAI_COMPLETIONS = Api(("prompt",), _completion, has_ids=True)
