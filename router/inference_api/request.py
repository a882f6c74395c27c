"""An inference request as a pick needs it."""

from dataclasses import dataclass
from enum import StrEnum

from router.pb.warmpath.v1 import router_pb2 as pb


class Unread(StrEnum):
    """Why a request has no prompt for a pick, so that load alone decides."""

    UNKNOWN_PATH = "UNKNOWN_PATH"
    """No API with this path is known."""
    NO_PREFIX = "NO_PREFIX"
    """The API has nothing to compute that a cached prefix would spare: embeddings, say."""
    BODY_ENCODED = "BODY_ENCODED"
    """The body is compressed; it is never decompressed."""
    BODY_NOT_JSON = "BODY_NOT_JSON"
    """The body, or its content type, is not JSON in UTF-8, or it is no object."""
    BODY_TOO_LARGE = "BODY_TOO_LARGE"
    """The body has more bytes than limits.max-prompt-bytes, or too many values or tokens."""
    SEVERAL_PROMPTS = "SEVERAL_PROMPTS"
    """The body has several prompts, which a pick cannot place together."""
    NO_PROMPT = "NO_PROMPT"
    """The body has no prompt, or one that the API does not allow."""
    NOT_EXACT = "NOT_EXACT"
    """The engine's tokens depend on something that the body does not tell."""


@dataclass(frozen=True, slots=True)
class InferenceRequest:
    """An inference request, as far as a pick needs it."""

    api: str
    """The name of the API (`apis.APIS`), which `UsageReader` needs; `unknown` for other paths."""
    model: str
    """As the request names it: a base model, an alias or an adapter. Empty if unknown."""
    prompt: pb.Prompt | None
    """None: the pick goes by load alone, and by `reckoned_tokens`."""
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
