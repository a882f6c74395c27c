"""Adds the tokens of a model's tokenizer_config.json to those of its tokenizer.json, as engines do.

Source: `transformers`' `TokenizersBackend.__init__` (`tokenization_utils_tokenizers.py`, 5.23), through
which vLLM and SGLang load tokenizers.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer

NAMED = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
EXTRA = ("additional_special_tokens", "extra_special_tokens")


def add_missing(tokenizer: Tokenizer, config: Mapping[str, Any]) -> None:
    """Add the configured tokens that a tokenizer lacks.

    Raises TypeError or ValueError for a malformed `config`.
    """
    there = list(tokenizer.get_added_tokens_decoder().values())
    decoder = config.get("added_tokens_decoder") or {}
    written = [_token(decoder[number]) for number in sorted(decoder, key=int)]
    added = [token for token in written if repr(token) not in set(map(repr, there))]
    contents = {token.content for token in (*there, *added)}
    for token in _special(config):
        if token.content not in contents:
            added.append(token)
            contents.add(token.content)
    named = {token.content for token in _named(config)}
    for token in added:
        token.special = token.special or token.content in named
    tokenizer.add_tokens(added)


def described(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Return a tokenizer's added tokens as tokenizer.json has them; only the fields that cuts need."""
    return [
        {"content": one.content, "rstrip": one.rstrip, "single_word": one.single_word}
        for one in tokenizer.get_added_tokens_decoder().values()
    ]


def _special(config: Mapping[str, Any]) -> Iterator[AddedToken]:
    yield from _named(config)
    for name in EXTRA:
        written = config.get(name) or ()
        for one in written.values() if isinstance(written, dict) else written:
            yield _token(one)


def _named(config: Mapping[str, Any]) -> Iterator[AddedToken]:
    for name in NAMED:
        written = config.get(f"{name}_token")
        if written is not None:
            yield _token(written)


def _token(written: object) -> AddedToken:
    if isinstance(written, str):
        return AddedToken(written, special=True)
    if not isinstance(written, dict) or not isinstance(written.get("content"), str):
        raise TypeError(
            f"an added token is neither a text nor an object with a content: {written!r:.60}"
        )
    flags = ("lstrip", "rstrip", "single_word", "normalized", "special")
    return AddedToken(
        written["content"], **{name: bool(written[name]) for name in flags if name in written}
    )
