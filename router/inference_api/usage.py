"""The usage that an engine reports with its response."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Usage:
    """Numbers of tokens as the engine counted them; None where the response does not tell."""

    prompt_tokens: int | None = None
    """Cached tokens included, whatever the API counts under this name."""
    cached_tokens: int | None = None
    output_tokens: int | None = None
