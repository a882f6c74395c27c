"""The table of inference APIs, by path."""

from router.inference_api.api import Api
from router.inference_api.openai_chat import OPENAI_CHAT
from router.inference_api.openai_completions import OPENAI_COMPLETIONS

PATHS = {
    "v1/chat/completions": OPENAI_CHAT,
    "v1/completions": OPENAI_COMPLETIONS,
}
"""Each API by the end of its path: gateways serve engines below prefixes of their own."""

MOST_SEGMENTS = max(path.count("/") + 1 for path in PATHS)


def api_of(path: str) -> Api | None:
    """Return the API whose path ends a request's path; the query counts for nothing."""
    segments = path.partition("?")[0].rsplit("/", MOST_SEGMENTS)[-MOST_SEGMENTS:]
    for at in range(len(segments)):
        if found := PATHS.get("/".join(segments[at:])):
            return found
    return None
