r"""Where a tokenizer provably merges nothing: derived from its definition (tokenizer.json).

A cut lies between a letter (`LETTERS`) and a character of `Cuts.before`: `some|_words`. The parts,
tokenised apart and put together, are the whole's tokens, because on the way from text to ids every
step keeps the two sides apart:

- **Added tokens** are looked for first. One reaches over the cut only if it contains such a pair, or
  swallows what follows a letter at its end (`rstrip`); a token that needs a word boundary where the
  cut is (`single_word`) could see the cut as one. A definition with such a token has no cuts.
- **Normalisers** that work a character, or a cluster of characters, at a time do the same on both
  sides: none of the letters combines with a space, a line end or a comma after it. What the others do
  is known only for `" "` to `"▁"` and runs of spaces, all of which lie behind the cut.
- **Pre-tokenizers** split the text into stretches that are tokenised apart:

  - Regular expressions (`Split`, `ByteLevel`). Of the alternatives in `prefixstore.expressions` none
    matches a letter together with what follows it, none looks behind itself, and some match every
    letter. So a match ends at the cut, and what follows is matched as if the text began
    there. The look-ahead `(?!\S)` follows white space and reads one character.
  - By white space (`Metaspace` that splits, `WhitespaceSplit`, `Whitespace`, BERT's).
- **The model** of a tokenizer that does not split (Llama 2, Gemma) merges over the cut only if some
  token has a space behind another character. Where a BPE vocabulary has none, no sequence of merges
  leads over it, and merges on one side do not depend on the other. This does not hold for Unigram:
  its choice among equally good segmentations depends on the rounding of all scores before.

For every other definition there are no cuts, and a text is encoded whole.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from prefixstore.expressions import BREAKS, KNOWN, LETTERS, alternatives, match_every_letter

_LETTER = re.compile(f"[{LETTERS}]")

_LOCAL_NORMALIZERS = frozenset(
    {
        "NFC",
        "NFD",
        "NFKC",
        "NFKD",
        "Lowercase",
        "StripAccents",
        "Nmt",
        "BertNormalizer",
        "Precompiled",
    }
)
_BY_WHITE_SPACE = frozenset({"WhitespaceSplit", "Whitespace", "BertPreTokenizer"})
SPACE_MARK = "▁"


@dataclass(frozen=True, slots=True)
class Cuts:
    """Where a text may be cut."""

    before: str
    """Characters that a cut may lie before, with a letter in front of it."""
    drops_space: bool = False
    """Whether the cut must lie before a space and a letter, and the tokenizer puts the space there
    itself: a part that begins with it is encoded without it."""


def cuts_of(definition: Mapping[str, Any]) -> Cuts | None:
    """Return where a tokenizer with this tokenizer.json may be cut; None where nothing is proven."""
    model = definition.get("model") or {}
    if model.get("type") not in ("BPE", "WordPiece", "Unigram", "WordLevel") or model.get(
        "dropout"
    ):
        return None
    normalized = _normalizers(definition.get("normalizer"))
    if normalized is None:
        return None
    marks, prepends = normalized
    before = _split_before(_flat(definition.get("pre_tokenizer"), "pretokenizers"), marks=marks)
    if before is None:
        return None
    if before and prepends:
        return None
    if not before:
        if not _keeps_spaces_in_front(definition, marks=marks):
            return None
        before = " "
    cuts = Cuts(before, drops_space=prepends)
    added = definition.get("added_tokens") or ()
    return None if any(_reaches_over(token, cuts, marks=marks) for token in added) else cuts


def _flat(step: Mapping[str, Any] | None, name: str) -> list[Mapping[str, Any]]:
    """Return the steps of a sequence, or of sequences of them."""
    if step is None:
        return []
    if step.get("type") != "Sequence":
        return [step]
    return [one for part in step.get(name) or () for one in _flat(part, name)]


def _normalizers(definition: Mapping[str, Any] | None) -> tuple[bool, bool] | None:
    """Return whether spaces become marks, and whether one is put in front; None: not known."""
    marks = prepends = False
    for step in _flat(definition, "normalizers"):
        kind = step.get("type")
        pattern = step.get("pattern") or {}
        if kind in _LOCAL_NORMALIZERS or (kind == "Strip" and not step.get("strip_left", True)):
            continue
        if kind == "Replace" and pattern == {"String": " "} and step.get("content") == SPACE_MARK:
            marks = True
        elif kind == "Prepend" and step.get("prepend") == SPACE_MARK and not marks:
            prepends = True
        elif not (kind == "Replace" and pattern == {"Regex": " {2,}"}):
            return None
    return None if prepends and not marks else (marks, prepends)


def _split_before(steps: Iterable[Mapping[str, Any]], *, marks: bool) -> str | None:
    """Return the characters before which the text is split after a letter; None: not known."""
    before = ""
    for step in steps:
        kind = step.get("type")
        if kind == "Split" and marks and step.get("pattern") == {"String": " "}:
            continue  # there is none left
        if kind == "ByteLevel":
            found = BREAKS if step.get("use_regex", True) else ""
            if step.get("add_prefix_space", True) and not before:
                # What is put in front of the text is put in front of a part that has no space there.
                found = " " if found else ""
        elif kind == "Split":
            pattern = (step.get("pattern") or {}).get("Regex")
            removes = step.get("behavior") == "Removed" and step.get("invert")
            if not removes and (step.get("behavior") != "Isolated" or step.get("invert")):
                return None
            parts = alternatives(pattern) if isinstance(pattern, str) else [""]
            if not KNOWN.issuperset(parts):
                return None
            found = BREAKS if match_every_letter(parts) else ""
        elif kind == "Metaspace":
            found = " " if step.get("split", True) else ""
        elif kind in _BY_WHITE_SPACE:
            found = " \n"
        elif kind == "Digits" or (
            kind == "Punctuation" and step.get("behavior", "Isolated") in ("Isolated", "Contiguous")
        ):
            found = ""
        else:
            return None
        if marks and found:
            return None  # its spaces are none any more
        before = before or found
    return before


def _keeps_spaces_in_front(definition: Mapping[str, Any], *, marks: bool) -> bool:
    """Whether no token of a BPE vocabulary has a space behind another character."""
    model = definition["model"]
    steps = _flat(definition.get("pre_tokenizer"), "pretokenizers")
    kinds = {step.get("type") for step in steps}
    space = "Ġ" if "ByteLevel" in kinds else " "
    if marks or "Metaspace" in kinds:
        space = SPACE_MARK
    if model["type"] != "BPE" or model.get("ignore_merges") or space not in model["vocab"]:
        return False
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        return False
    added = {str(token.get("content")) for token in definition.get("added_tokens") or ()}
    behind = re.compile(f"[^{space}]{space}")
    return not any(behind.search(token) for token in model["vocab"] if token not in added)


def _reaches_over(token: Mapping[str, Any], cuts: Cuts, *, marks: bool) -> bool:
    """Whether an added token could lie on both sides of a cut, or see it."""
    content = str(token.get("content", ""))
    breaks = cuts.before + (SPACE_MARK if marks else "")
    if not content or re.search(f"[{LETTERS}][{breaks}]", content):
        return True
    if token.get("rstrip") and _LETTER.match(content[-1]):
        return True
    if token.get("single_word") and content[0] in breaks:
        return True
    return cuts.drops_space and bool(_LETTER.match(content[0]))
