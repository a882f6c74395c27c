"""Text and chats to token ids and back, for workers that are given a tokenizer.

Templates run in Jinja's immutable sandbox with blocks trimmed, as `transformers` runs them.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import jinja2.sandbox
import tokenizers


class TextError(Exception):
    """A text or chat cannot be tokenised."""


class TextCodec(Protocol):
    """What the server needs to serve text."""

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Return a completion prompt's ids, special tokens added where they are wanted."""

    def render(self, messages: Sequence[dict[str, Any]], body: dict[str, Any]) -> list[int]:
        """Return a chat's ids."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of generated ids."""

    def detokenize(self, ids: Sequence[int]) -> str:
        """Return the exact text of ids, special tokens included."""

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return each id's piece as the vocabulary has it."""


NO_TOKENIZER = "this worker has no tokenizer: send token ids, or start it with --tokenizer"


class NoText:
    """Token ids only."""

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Refuse."""
        del text, special
        raise TextError(NO_TOKENIZER)

    def render(self, messages: Sequence[dict[str, Any]], body: dict[str, Any]) -> list[int]:
        """Refuse."""
        del messages, body
        raise TextError("this worker has no tokenizer, hence no chats: start it with --tokenizer")

    def decode(self, ids: Sequence[int]) -> str:
        """Return the ids in words."""
        return "".join(f" t{token}" for token in ids)

    def detokenize(self, ids: Sequence[int]) -> str:
        """Refuse."""
        del ids
        raise TextError(NO_TOKENIZER)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Refuse."""
        del ids
        raise TextError(NO_TOKENIZER)


class FolderText:
    """The tokenizer and chat template of a model's folder."""

    def __init__(self, folder: Path) -> None:
        """Load a folder. Raises OSError, or ValueError naming the file at fault."""
        self._tokenizer = _tokenizer(folder / "tokenizer.json")
        config = _object(folder / "tokenizer_config.json")
        path = folder / "chat_template.jinja"
        source = path.read_text("utf-8") if path.exists() else config.get("chat_template")
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        try:
            self._template = environment.from_string(source) if isinstance(source, str) else None
        except jinja2.TemplateError as error:
            raise ValueError(f"{folder}: the chat template is none: {error}") from error
        self._special = {
            name: token
            for name, value in config.items()
            if name.endswith("_token") and isinstance(token := _content(value), str)
        }
        self.vocab_size = self._tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Return a completion prompt's ids."""
        return self._tokenizer.encode(text, add_special_tokens=special).ids

    def render(self, messages: Sequence[dict[str, Any]], body: dict[str, Any]) -> list[int]:
        """Return a chat's ids."""
        if self._template is None:
            raise TextError("the tokenizer has no chat template")
        try:
            text = self._template.render(
                messages=messages,
                tools=body.get("tools"),
                add_generation_prompt=body.get("add_generation_prompt", True),
                **self._special,
                **(body.get("chat_template_kwargs") or {}),
            )
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise TextError(f"the chat template cannot render this: {error}") from error
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of generated ids."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=True)

    def detokenize(self, ids: Sequence[int]) -> str:
        """Return the exact text of ids, special tokens included."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return each id's piece as the vocabulary has it."""
        return [self._tokenizer.id_to_token(token) or "" for token in ids]


def _tokenizer(path: Path) -> tokenizers.Tokenizer:
    text = path.read_text(encoding="utf-8")
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:
        # The library raises nothing more specific.
        raise ValueError(f"{path}: {error}") from error


def _object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}: is no JSON object")  # noqa: TRY004  the file is wrong, no argument
    return value


def _content(token: Any) -> Any:
    """Return a special token's text: it is written as that, or as an object with flags."""
    return token.get("content") if isinstance(token, dict) else token
