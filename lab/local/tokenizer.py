"""Writes a model's folder with a tokenizer and a chat template, for workers that only simulate one.

Each byte of a prompt is a token. Answers, which such workers draw from the whole vocabulary, are mostly
words of two made-up syllables. The form is that of Hugging Face's `tokenizers`, 0.23: a byte-level BPE
without merges.
"""

import json
from itertools import product
from pathlib import Path
from typing import Any

TEMPLATE = (
    "{% for one in messages %}{{ one.role + ': ' + (one.content or '') + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)
SPACE = "Ġ"
"""How the byte of a space is written in a byte-level vocabulary."""
SYLLABLES = tuple(map("".join, product("bdfgklmnprstvwz", "aeiou")))


def write_tokenizer(folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json. Raises OSError."""
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer()), encoding="utf-8")
    config = {"chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


def _tokenizer() -> dict[str, Any]:
    words = (SPACE + "".join(pair) for pair in product(SYLLABLES, repeat=2))
    pieces = [*_bytes(), *words]
    split = {
        "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False,
    }  # fmt: skip
    return {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": split,
        "decoder": split,
        "model": {
            "type": "BPE",
            "vocab": {piece: number for number, piece in enumerate(pieces)},
            "merges": [],
        },
    }


def _bytes() -> list[str]:
    """Return the character for each byte, as GPT-2's `bytes_to_unicode` has it."""
    shown = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = [byte for byte in range(256) if byte not in shown]
    return [chr(byte if byte in shown else 256 + hidden.index(byte)) for byte in range(256)]
