"""Reads a caller's prompt into tokens, as the router reads a request's."""

from collections.abc import Callable, Sequence
from pathlib import Path

from warmpath.client.prompt import AnyPrompt, Prompt, prompt_of
from warmpath.indexer.keys.key import TOKEN_BYTES, pack_tokens
from warmpath.router.prompt.bad_request import BadRequestError
from warmpath.router.prompt.limits import check_count, check_item, check_name
from warmpath.router.prompt.token_prompt import ReadPrompt, TokenPrompt

Tokenizer = str | Path | Callable[[str], Sequence[int]]
"""A model's folder with its tokenizer.json, or a function from a text to its token ids."""

EXTRA = "the extra `router` (pip install 'warmpath-router[router]')"
"""The extra that has the package of tokenizers."""


class PromptReader:
    """Reads prompts of one model; texts only with a `tokenizer`, whose folder adds special tokens.

    Raises ValueError for a folder without a tokenizer that can be used.
    """

    def __init__(self, model: str, tokenizer: Tokenizer | None) -> None:
        self._model = model
        self._encode: Callable[[str], bytes] | None = None
        if isinstance(tokenizer, str | Path):
            self._encode = _encoder_of(Path(tokenizer))
        elif tokenizer is not None:
            self._encode = lambda text: pack_tokens(tokenizer(text))

    def read(self, given: AnyPrompt) -> ReadPrompt:
        """Return a prompt with its tokens. Raises ValueError, which names the field at fault."""
        prompt = prompt_of(given)
        if prompt.model not in ("", self._model):
            raise ValueError(f"model: is {prompt.model!r}; the index has {self._model!r}")
        text = prompt.text
        ids = prompt.packed_tokens() if text is None else self._tokenised(text)
        if not ids:
            raise ValueError("tokens: are none; at least one is needed")
        try:
            for name in ("lora", "cache_salt", "extra_key"):
                check_name(name, getattr(prompt, name))
            _check_items(prompt, len(ids) // TOKEN_BYTES)
        except BadRequestError as error:
            raise ValueError(str(error)) from None
        return ReadPrompt(
            TokenPrompt(
                model=self._model,
                ids=ids,
                lora=prompt.lora,
                cache_salt=prompt.cache_salt,
                extra_key=prompt.extra_key,
                items=tuple(prompt.items),
            ),
            covered_chars=0 if text is None else len(text),
            form="ids" if text is None else "text",
        )

    def _tokenised(self, text: str) -> bytes:
        if self._encode is None:
            raise ValueError("text: needs a tokenizer; give one, or token ids")
        return self._encode(text)


def _encoder_of(folder: Path) -> Callable[[str], bytes]:
    # Imported here, since a caller with token ids needs no package of tokenizers.
    try:
        from warmpath.prefixstore.tokenizers.tokenizer import (  # noqa: PLC0415
            FolderTokenizer,
            InvalidTextError,
            TokenizerUnavailableError,
            check_text,
        )
    except ModuleNotFoundError as error:
        raise ValueError(f"tokenizer: needs {EXTRA}: {error}") from error
    try:
        tokenizer = FolderTokenizer(folder)
    except TokenizerUnavailableError as error:
        raise ValueError(f"tokenizer: {error}") from error

    def encode(text: str) -> bytes:
        try:
            [ids] = tokenizer.encode([check_text(text)], at_start=True)
        except (InvalidTextError, TokenizerUnavailableError) as error:
            raise ValueError(f"text: {error}") from error
        return tokenizer.prefix + ids + tokenizer.suffix

    return encode


def _check_items(prompt: Prompt, tokens: int) -> None:
    check_count("items", len(prompt.items))
    end = 0
    for position, item in enumerate(prompt.items):
        end = check_item(f"items[{position}]", item, begin=end, tokens=tokens)
