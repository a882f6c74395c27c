r"""Regular expressions that pre-tokenizers split by, an alternative at a time.

Published tokenizers put a few alternatives together in ever new ways: GPT-2's, tiktoken's cl100k and
o200k, and what Llama 3, Qwen, DeepSeek, Mistral (tekken), BLOOM, StarCoder and Falcon made of them. What
`prefixstore.cuts.proof` needs to know of each is stated here, and tried out in
`tests/prefixstore/test_exactness.py`: none matches a letter together with a character of `BREAKS`
after it, and none looks at what stands before it.
"""

LETTERS = (
    "A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u00ff\u0391-\u03a1\u03a3-\u03a9\u03b1-\u03c9\u0410-\u044f"
    "\u05d0-\u05ea\u0621-\u063a\u0641-\u064a\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fa5\uac00-\ud7a3"
)
"""Ranges of characters that have been letters in every version of Unicode since 3.0.

None has a combining role, so each is a letter for every version of every regex engine.
"""

BREAKS = " \n\u3001\u3002\uff0c"
"""Space, line end, and the marks between phrases and sentences where no spaces are written."""

OF_LETTERS = frozenset(
    {
        " ?\\p{L}+",
        "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+",
        "[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+",
        "[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+",
        "[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+",
        " ?[^(\\s|[.,!?…。，、।۔،])]+",
        "\\p{L}+",
        "[\\p{L}]+",
    }
)
"""Alternatives that match every letter."""

_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER = "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
_LOWER = "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
_AHEAD = "[^\\r\\n\\p{L}\\p{N}]?"

CASED = tuple(
    (f"{_AHEAD}{_UPPER}*{_LOWER}+{end}", f"{_AHEAD}{_UPPER}+{_LOWER}*{end}")
    for end in ("", f"{_CONTRACTION}?")
)
"""Pairs that match every letter together."""

OTHERS = frozenset(
    {
        "'s", "'t", "'re", "'ve", "'m", "'ll", "'d", _CONTRACTION, "'(?i:[sdmt]|ll|ve|re)",
        " ?\\p{N}+", "\\p{N}", "\\p{N}+", "[\\p{N}]", "\\p{N}{1,3}", "\\p{N}{1,3}+",
        "[0-9]", "[0-9][0-9][0-9]", "\\d",
        " ?[^\\s\\p{L}\\p{N}]+", "[^\\s\\p{L}\\p{N}]+", " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*",
        " ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*", " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*",
        " ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*", " ?[\\p{P}\\p{S}]+[\\r\\n]*",
        "\\s*[\\r\\n]+", "\\s*[\\r\\n]", "\\s*[\\r\\n]++",
        "\\s+(?!\\S)", "\\s+", "\\s", "\\s+$", "\\s++$",
        "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+",
        "[一-龥\u3040-ゟ゠-ヿ]+",
    }
)  # fmt: skip

KNOWN = OF_LETTERS | OTHERS | {one for pair in CASED for one in pair}


def alternatives(pattern: str) -> list[str]:
    """Return the alternatives of a regular expression, line ends written as escapes."""
    parts, groups, classes, at, begin = [], 0, 0, 0, 0
    while at < len(pattern):
        character = pattern[at]
        if character == "\\":
            at += 1
        elif character == "[":
            classes += 1
        elif character == "]" and classes:
            classes -= 1
        elif not classes:
            groups += (character == "(") - (character == ")")
            if character == "|" and not groups:
                parts.append(pattern[begin:at])
                begin = at + 1
        at += 1
    parts.append(pattern[begin:])
    return [part.replace("\r", "\\r").replace("\n", "\\n") for part in parts]


def match_every_letter(parts: list[str]) -> bool:
    """Whether alternatives match every letter, in some one of them."""
    given = frozenset(parts)
    return bool(given & OF_LETTERS) or any(given.issuperset(pair) for pair in CASED)
