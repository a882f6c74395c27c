"""Texts to tokenise: many scripts, code, white space, marks, and random characters."""

from collections.abc import Sequence
from random import Random

PARTS = [
    "the", "cache", "words", "don't", "I'LL", "we've", "it's", "x=1;", "if (a) {", "naïve", "e\u0301",
    "Ａｗｉｄｅ", "ﬁne", "ß", "İ", "ſ", "Ǆ", "12345", "3.14", "1,000", "½", "x²", "...", "--", "'", "''", "`",
    "日本語", "中文，", "分词。", "、", "カタカナ", "ひらがな", "한국어", "नमस्ते", "हिन्दी", "العربية", "עברית", "русский",
    "ελληνικά", "ไทย", "ქართული", "👩‍👩‍👧", "🏳️‍🌈", "🇩🇪", "\u200d", "\u200b", "\ufeff", "\u00ad", "\u0000",
    "<|end|>", "<|user|>", "<s>", "</s>", "<unk>", "a\u0300\u0301\u0302", "\u1100\u1161\u11a8", "▁", "Ġ", "x▁y",
    "http://example.org/a?b=c&d", "def f(x):", "return", "SELECT * FROM t;", "\\n", '{"a": [1]}',
]  # fmt: skip
GAPS = [" "] * 12 + [
    "",
    "",
    "  ",
    "   ",
    "\n",
    "\n\n",
    "\r\n",
    "\r",
    "\t",
    " \n",
    "\n ",
    "\u00a0",
    "\u3000",
    "\u2028",
]


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
