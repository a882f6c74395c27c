r"""The alternatives of the regular expressions by which pre-tokenizers split a text.

Published tokenizers combine a few alternatives in new ways: those of GPT-2, of tiktoken's cl100k and
o200k, and their variants in Llama 3, Qwen, DeepSeek, Mistral (tekken), BLOOM, StarCoder and Falcon.
`prefixstore.cuts.proof` relies on two properties of each alternative listed here, which
`tests/prefixstore/test_exactness.py` tries out: none matches a letter together with a character of
`BREAKS` after it, and none looks behind its own start.
"""

LETTERS = (
    "A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u00ff\u0391-\u03a1\u03a3-\u03a9\u03b1-\u03c9\u0410-\u044f"
    "\u05d0-\u05ea\u0621-\u063a\u0641-\u064a\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fa5\uac00-\ud7a3"
)
"""Ranges of characters that have been letters in every version of Unicode since 3.0.

None has a combining role, so each is a letter for every version of every regex engine.
"""

BREAKS = " \n\u3001\u3002\uff0c"
"""Space, line end, and the punctuation marks of scripts that write no spaces."""

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
"""Alternatives with both properties that match every letter."""

_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER = "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
_LOWER = "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
_AHEAD = "[^\\r\\n\\p{L}\\p{N}]?"

CASED = tuple(
    (f"{_AHEAD}{_UPPER}*{_LOWER}+{end}", f"{_AHEAD}{_UPPER}+{_LOWER}*{end}")
    for end in ("", f"{_CONTRACTION}?")
)
"""Pairs of alternatives with both properties that together match every letter."""

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
"""Alternatives with both properties that match no letter, or only some."""

KNOWN = OF_LETTERS | OTHERS | {one for pair in CASED for one in pair}


def alternatives(pattern: str) -> list[str]:
    """Return a regular expression's top-level alternatives, with line ends written as escapes."""
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
    """Return whether `parts`, alternatives of this module, together match every letter."""
    given = frozenset(parts)
    return bool(given & OF_LETTERS) or any(given.issuperset(pair) for pair in CASED)
