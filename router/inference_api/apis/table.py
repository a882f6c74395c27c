"""The table of inference APIs, by path.

Paths of vLLM 0.32, SGLang 0.5.23 and TensorRT-LLM, and of Ollama's API, which SGLang has too.
"""

from warmpath.router.inference_api.apis.anthropic_messages import ANTHROPIC_MESSAGES
from warmpath.router.inference_api.apis.api import Api, UnreadApi
from warmpath.router.inference_api.apis.generate import VLLM_GENERATE
from warmpath.router.inference_api.apis.openai import (
    OPENAI_CHAT,
    OPENAI_COMPLETIONS,
    OPENAI_RESPONSES,
)
from warmpath.router.inference_api.apis.sglang_generate import SGLANG_GENERATE
from warmpath.router.inference_api.request import Unread

UNKNOWN = UnreadApi("unknown", Unread.UNKNOWN_PATH, "no API with this path is known")
EMBEDDINGS = UnreadApi("embeddings", Unread.NO_PREFIX, "embeddings are computed whole")
SCORES = UnreadApi("scores", Unread.NO_PREFIX, "scores and classes of texts are computed whole")
TOKENS = UnreadApi("tokens", Unread.NO_PREFIX, "counting tokens computes none")
AUDIO = UnreadApi("audio", Unread.NO_PREFIX, "the prompt is a sound")
MEDIA = UnreadApi("media", Unread.NO_PREFIX, "the answer is an image or a film")
BATCH = UnreadApi("batch", Unread.SEVERAL_PROMPTS, "the body has a list of chats")
OTHERS = UnreadApi("others", Unread.NOT_EXACT, "how the engine reads this API is not known here")

PATHS: dict[str, Api | UnreadApi] = {
    "v1/chat/completions": OPENAI_CHAT,
    "v1/completions": OPENAI_COMPLETIONS,
    "v1/responses": OPENAI_RESPONSES,
    "v1/messages": ANTHROPIC_MESSAGES,
    "inference/v1/generate": VLLM_GENERATE,
    "generate": SGLANG_GENERATE,
    **dict.fromkeys(("v1/embeddings", "v2/embed", "pooling", "encode"), EMBEDDINGS),
    **dict.fromkeys(("score", "v1/score", "classify", "v1/classify"), SCORES),
    **dict.fromkeys(("rerank", "v1/rerank", "v2/rerank", "generative_scoring"), SCORES),
    **dict.fromkeys(("tokenize", "detokenize", "v1/messages/count_tokens"), TOKENS),
    **dict.fromkeys(("v1/tokenize", "v1/detokenize"), TOKENS),
    **dict.fromkeys(("v1/chat/completions/render", "v1/completions/render"), TOKENS),
    **dict.fromkeys(("v1/responses/render", "v1/messages/render"), TOKENS),
    **dict.fromkeys(("v1/audio/transcriptions", "v1/audio/translations"), AUDIO),
    "v1/audio/speech": AUDIO,
    **dict.fromkeys(("v1/images/generations", "v1/images/edits"), MEDIA),
    **dict.fromkeys(("v1/videos", "v1/videos/generations"), MEDIA),
    "v1/chat/completions/batch": BATCH,
    **dict.fromkeys(("v2/chat", "api/generate", "api/chat", "invocations"), OTHERS),
    "vertex_generate": OTHERS,
}
"""Each API by the end of its path: gateways serve engines below prefixes of their own."""

MOST_SEGMENTS = max(path.count("/") + 1 for path in PATHS)


def api_of(path: str) -> Api | UnreadApi:
    """Return the API whose path ends a request's path; the query and a slash at its end are ignored."""
    segments = path.partition("?")[0].rstrip("/").rsplit("/", MOST_SEGMENTS)[-MOST_SEGMENTS:]
    for at in range(len(segments)):
        if found := PATHS.get("/".join(segments[at:])):
            return found
    return UNKNOWN
