"""An inference request as a pick needs it."""

import msgspec

from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.inference_api.unread import Unread


class InferenceRequest(msgspec.Struct, frozen=True):
    """An inference request, as far as a pick needs it."""

    api: str
    """The name of the API in the table (`apis/paths.py`); `unknown` for other paths."""
    model: str
    """As the request names it: a base model, an alias or an adapter. Empty if unknown."""
    prompt: pb.Prompt | None
    """The prompt for a pick, with the request's model unless the body names none. A pick may still
    refuse it, for an unknown model or for messages that no template accepts. None: the pick goes by load
    and by `reckoned_tokens` alone."""
    is_streamed: bool
    """Whether the request asks for a response in server-sent events."""
    most_output_tokens: int | None
    """Most tokens of one answer; None if the request names no limit."""
    unread_because: Unread | None = None
    """Why there is no prompt; None if there is one."""
    problem: str = ""
    """The same in words, without any part of the prompt; empty if there is one."""
    reckoned_tokens: int = 0
    """The prompt's number of tokens, estimated by length, where there is no prompt; 0 if unknown."""
