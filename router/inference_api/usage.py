"""The usage that an engine reports with its response.

Each API writes it in its own way, and no two of them give one key two meanings:

    OpenAI's completions, chats, embeddings  prompt_tokens, prompt_tokens_details.cached_tokens,
      and vLLM's /inference/v1/generate      completion_tokens
    OpenAI's responses                       input_tokens, input_tokens_details.cached_tokens,
                                             output_tokens
    Anthropic's messages                     input_tokens, which leaves out the two that follow,
                                             cache_read_input_tokens, cache_creation_input_tokens,
                                             output_tokens
    SGLang's /generate                       prompt_tokens, cached_tokens, completion_tokens
"""

import msgspec

MOST_TOKENS = (1 << 32) - 1
"""The largest number that a report can have; a larger one counts as a fault of the engine."""


class Usage(msgspec.Struct, frozen=True):
    """Numbers of tokens as the engine counted them; None where the response has no number."""

    prompt_tokens: int | None = None
    """All prompt tokens, cached ones included, in every API."""
    cached_tokens: int | None = None
    output_tokens: int | None = None

    def then(self, later: "Usage") -> "Usage":
        """Return the usage after a later report, which may lack some numbers."""
        return Usage(
            _either(later.prompt_tokens, self.prompt_tokens),
            _either(later.cached_tokens, self.cached_tokens),
            _either(later.output_tokens, self.output_tokens),
        )


def usage_of(found: object) -> Usage:
    """Return the usage in a response's usage object; an empty one for any other value."""
    if not isinstance(found, dict):
        return Usage()
    prompt = _count(found.get("prompt_tokens"))
    if prompt is None and (prompt := _count(found.get("input_tokens"))) is not None:
        prompt += _count(found.get("cache_read_input_tokens")) or 0
        prompt += _count(found.get("cache_creation_input_tokens")) or 0
    cached = _either(
        _count(found.get("cached_tokens")), _count(found.get("cache_read_input_tokens"))
    )
    for details in ("prompt_tokens_details", "input_tokens_details"):
        if isinstance(inner := found.get(details), dict):
            cached = _either(_count(inner.get("cached_tokens")), cached)
    output = _either(_count(found.get("completion_tokens")), _count(found.get("output_tokens")))
    return Usage(_count(prompt), cached, output)


def _either(first: int | None, second: int | None) -> int | None:
    return second if first is None else first


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value <= MOST_TOKENS else None
