"""A tokenizer with a word for every token id, which gives made-up ids a text."""

import string
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers

from warmpath.lab.bench.stand.made_up_fleet import VOCAB_SIZE

LETTERS = string.ascii_lowercase


def text_of(ids: Sequence[int]) -> str:
    """Return the text of these tokens, 5 characters each."""
    return " ".join(map(_word, ids))


def save(folder: Path) -> None:
    """Write the tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    vocab = {_word(token): token for token in range(VOCAB_SIZE)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token=_word(0)))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))


def _word(token: int) -> str:
    word = ""
    for _ in range(4):
        token, letter = divmod(token, len(LETTERS))
        word += LETTERS[letter]
    return word
