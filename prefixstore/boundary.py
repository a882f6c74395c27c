r"""Where a text may be cut so that the parts' tokens are the whole's tokens.

A cut lies before a space that stands alone between two ASCII letters: `some|_words`. For the
pre-tokenizers listed here that is a boundary whatever else the text holds:

- They split the text by regular expressions into stretches that are tokenised apart. In each of
  these expressions a stretch that contains a letter ends at the first character after the letters
  that is no letter (or begins a contraction, which a space does not), so a stretch ends before the
  space. No expression looks behind itself, so matching from the space on goes as if the text began
  there, and the only look-ahead, `\s+(?!\S)`, begins at white space and does not reach over a letter.
- Added tokens are cut out before. One could reach over the cut only if it contained white space, or
  swallowed the space beside it (`lstrip`, `rstrip`) with a letter at that end; a tokenizer that has
  such a token does not qualify.
- Normalisation to NFC composes a character with marks that follow it, never an ASCII letter with a
  space or a space with an ASCII letter.

Whether a tokenizer qualifies is decided from its definition (`qualifies`); for all others a text is
one piece.
"""

from typing import Any

CHUNK = 256
"""Characters between two cuts, about: a cut is the last one possible in each stretch of so many."""

GPT2 = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
CL100K = (
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
)
QWEN2 = CL100K.replace("\\p{N}{1,3}", "\\p{N}")
CL100K_POSSESSIVE = (
    "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}{1,3}|"
    " ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"
)

KNOWN_PATTERNS = frozenset({GPT2, CL100K, QWEN2, CL100K_POSSESSIVE})
"""GPT-2's; tiktoken's cl100k as Llama 3 and others ship it; Qwen 2's."""


def pieces_of(text: str) -> list[str]:
    """Cut a text at the last possible place of each stretch of `CHUNK` characters.

    Every cut depends only on what stands before the end of its stretch, so two texts with the same
    beginning are cut alike there.
    """
    pieces = []
    begin = 0
    for end in range(CHUNK, len(text), CHUNK):
        cut = _last_cut(text, max(begin, end - CHUNK), end)
        if cut > begin:
            pieces.append(text[begin:cut])
            begin = cut
    pieces.append(text[begin:])
    return pieces


def _last_cut(text: str, begin: int, end: int) -> int:
    """Return the last cut in text[begin:end], both letters inside it; -1 where there is none."""
    at = text.rfind(" ", begin + 1, end - 1)
    while at > begin:
        if _is_letter(text[at - 1]) and _is_letter(text[at + 1]):
            return at
        at = text.rfind(" ", begin + 1, at)
    return -1


def _is_letter(character: str) -> bool:
    return character.isascii() and character.isalpha()


def qualifies(definition: dict[str, Any]) -> bool:
    """Whether cuts are proven for a tokenizer with this tokenizer.json."""
    normalizer = definition.get("normalizer")
    return (
        definition.get("model", {}).get("type") == "BPE"
        and (normalizer is None or normalizer.get("type") == "NFC")
        and _splits_provably(definition.get("pre_tokenizer"))
        and not any(_reaches_over(token) for token in definition.get("added_tokens") or ())
    )


def _splits_provably(pre_tokenizer: dict[str, Any] | None) -> bool:
    steps = [pre_tokenizer or {}]
    if steps[0].get("type") == "Sequence":
        steps = steps[0].get("pretokenizers") or [{}]
    split = False
    for step in steps:
        if step.get("type") == "ByteLevel":
            if step.get("add_prefix_space", True):
                return False
            split |= step.get("use_regex", True)
        elif step.get("type") == "Split":
            pattern = (step.get("pattern") or {}).get("Regex")
            if pattern not in KNOWN_PATTERNS or step.get("behavior") != "Isolated":
                return False
            if step.get("invert"):
                return False
            split = True
        else:
            return False
    return split


def _reaches_over(token: dict[str, Any]) -> bool:
    content = str(token.get("content", ""))
    if not content or any(character.isspace() for character in content):
        return True
    return bool(token.get("lstrip") and _is_letter(content[0])) or bool(
        token.get("rstrip") and _is_letter(content[-1])
    )
