r"""Where a tokenizer provably merges nothing: derived from its definition (tokenizer.json).

A cut lies between a letter (`LETTERS`) and a character of `Cuts.before`: `some|_words`. The parts,
tokenised apart and put together, are the whole's tokens, because on the way from text to ids every
step keeps the two sides apart:

- **Added tokens** are looked for first. One reaches over the cut only if it contains such a pair, or
  swallows what follows a letter at its end (`rstrip`); a token that needs a word boundary where the
  cut is (`single_word`) could see the cut as one. A definition with such a token has no cuts.
- **Normalisers** that work a character, or a cluster of characters, at a time do the same on both
  sides: none of the letters combines with a space, a line end or a comma after it. Which of them a
  split allows is said beside each set. What the others do is known only for `" "` to `"▁"` and runs of
  spaces, all of which lie behind the cut.
- **Pre-tokenizers** split the text into stretches that are tokenised apart:

  - Regular expressions (`Split`, `ByteLevel`). Of the alternatives in `prefixstore.cuts.expressions`
    none matches a letter together with what follows it, none looks behind itself, and some match every
    letter. So a match ends at the cut, and what follows is matched as if the text began
    there. The look-ahead `(?!\S)` follows white space and reads one character.
  - By white space (`Metaspace` that splits, `WhitespaceSplit`, `Whitespace`, BERT's).
- **The model** of a tokenizer that does not split (Llama 2, Gemma) merges over the cut only if some
  merge makes a token with a space behind another character. Where a BPE has none, nothing leads over
  it, and merges on one side do not depend on the other. This does not hold for Unigram: its choice
  among equally good segmentations depends on the rounding of all scores before.

For every other definition there are no cuts, and a text is encoded whole.
"""

import itertools
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from prefixstore.cuts.expressions import BREAKS, KNOWN, alternatives, match_every_letter

_COMPOSING = frozenset({"NFC", "NFKC", "Lowercase"})
"""Normalisers that leave each of `LETTERS` one letter, and what follows it what it is."""
_WITHOUT_SPACES = _COMPOSING | {"NFD", "NFKD", "StripAccents"}
"""Normalisers that put no space where there was none."""
_LOCAL = _WITHOUT_SPACES | {"BertNormalizer", "Nmt", "Precompiled"}
"""Normalisers that work a character or a cluster of them at a time, and keep white space apart."""
_REWRITING = frozenset({"ByteLevel", "Metaspace"})
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


def cuts_of(definition: Mapping[str, Any], normalise: Callable[[str], str] = str) -> Cuts | None:
    """Return where a tokenizer with this tokenizer.json may be cut; None where nothing is proven.

    `normalise` is what its normalisers do, together.
    """
    model = definition.get("model") or {}
    if model.get("type") not in ("BPE", "WordPiece", "Unigram", "WordLevel") or model.get(
        "dropout"
    ):
        return None
    normal = _normal(definition.get("normalizer"))
    if normal is None:
        return None
    before = _split_before(_flat(definition.get("pre_tokenizer"), "pretokenizers"), normal)
    if before is None or (before and normal.prepends):
        return None
    if not before:
        if not _keeps_spaces_in_front(definition, normal):
            return None
        before = " "
    cuts = Cuts(before, drops_space=normal.prepends)
    for token in definition.get("added_tokens") or ():
        content = str(token.get("content", ""))
        # As it is looked for in the text, or in what the normalisers make of it.
        forms = {content, normalise(content)}
        if any(_reaches_over(token, form, cuts, normal.breaks) for form in forms):
            return None
    return cuts


def puts_space_in_front(definition: Mapping[str, Any]) -> bool | None:
    """Whether a byte-level tokenizer puts a space before a text; None for any other one."""
    for step in _flat(definition.get("pre_tokenizer"), "pretokenizers"):
        if step.get("type") == "ByteLevel":
            return bool(step.get("add_prefix_space", True))
    return None


def _flat(step: Mapping[str, Any] | None, name: str) -> list[Mapping[str, Any]]:
    """Return the steps of a sequence, or of sequences of them."""
    if step is None:
        return []
    if step.get("type") != "Sequence":
        return [step]
    return [one for part in step.get(name) or () for one in _flat(part, name)]


@dataclass(frozen=True, slots=True)
class Normal:
    """What a tokenizer's normalisers do to a text."""

    kinds: frozenset[str]
    marks: bool
    """Whether each space becomes `SPACE_MARK`."""
    marks_runs: bool
    """Whether several spaces become one `SPACE_MARK`."""
    prepends: bool
    """Whether one is put in front of the text."""

    @property
    def breaks(self) -> frozenset[str]:
        """What a character of `BREAKS` is or becomes."""
        become = "," if self.kinds & {"NFKC", "NFKD", "Precompiled"} else ""
        if self.marks or self.marks_runs:
            become += SPACE_MARK
        return frozenset(BREAKS + become)


def _normal(definition: Mapping[str, Any] | None) -> Normal | None:
    """Return what the normalisers do; None where it is not known."""
    kinds = set()
    marks = marks_runs = prepends = False
    for step in _flat(definition, "normalizers"):
        kind = str(step.get("type"))
        pattern, content = step.get("pattern") or {}, step.get("content")
        if kind in _LOCAL:
            kinds.add(kind)
        elif kind == "Strip" and not step.get("strip_left", True):
            continue  # what is cut off begins with white space, and never ends with it
        elif kind == "Replace" and pattern == {"String": " "} and content == SPACE_MARK:
            marks = True
        elif kind == "Replace" and pattern == {"Regex": " {2,}"} and content in (" ", SPACE_MARK):
            marks_runs = content == SPACE_MARK
        elif kind == "Prepend" and step.get("prepend") == SPACE_MARK and not marks:
            prepends = True
        else:
            return None
    if prepends and not marks:
        return None
    return Normal(frozenset(kinds), marks, marks_runs, prepends)


def _split_before(steps: Iterable[Mapping[str, Any]], normal: Normal) -> str | None:
    """Return the characters before which the text is split after a letter; None: not known."""
    before = ""
    is_rewritten = False
    for step in steps:
        kind = step.get("type")
        if kind == "Split" and normal.marks and step.get("pattern") == {"String": " "}:
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
            if step.get("replacement", SPACE_MARK) != SPACE_MARK:
                return None
            found = " " if step.get("split", True) else ""
        elif kind in _BY_WHITE_SPACE:
            found = " \n"
        elif kind == "Digits" or (
            kind == "Punctuation" and step.get("behavior", "Isolated") in ("Isolated", "Contiguous")
        ):
            found = ""
        else:
            return None
        if found and not before and (is_rewritten or not _splits_still(str(kind), normal)):
            return None
        before = before or found
        # What comes after it sees other characters for spaces.
        is_rewritten |= kind in _REWRITING
    return before


def _splits_still(kind: str, normal: Normal) -> bool:
    """Whether a step that splits texts splits what the normalisers leave of them."""
    if kind == "Metaspace":
        return not normal.marks
    if normal.marks or normal.marks_runs:
        return False
    return kind in _BY_WHITE_SPACE or normal.kinds <= _COMPOSING


def _keeps_spaces_in_front(definition: Mapping[str, Any], normal: Normal) -> bool:
    """Whether no merge of a BPE leads to a token that has a space behind another character."""
    model = definition["model"]
    steps = _flat(definition.get("pre_tokenizer"), "pretokenizers")
    rewriting = [step.get("type") for step in steps if step.get("type") in _REWRITING]
    space = "Ġ" if "ByteLevel" in rewriting else " "
    if normal.marks or "Metaspace" in rewriting:
        space = SPACE_MARK
    if len(rewriting) + normal.marks > 1 or not normal.kinds <= _WITHOUT_SPACES:
        return False
    if normal.marks_runs and space != SPACE_MARK:
        return False
    if model["type"] != "BPE" or model.get("ignore_merges") or space not in model["vocab"]:
        return False
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        return False
    behind = re.compile(f"[^{space}]{space}")
    for merge in model.get("merges") or ():
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if len(parts) != 2 or behind.search("".join(parts)):
            return False
    return True


def _reaches_over(
    token: Mapping[str, Any], content: str, cuts: Cuts, breaks: frozenset[str]
) -> bool:
    """Whether an added token, looked for as `content`, could lie on both sides of a cut, or see it."""
    if not content:
        return True
    if any(_is_word(one) and other in breaks for one, other in itertools.pairwise(content)):
        return True
    if token.get("rstrip") and _is_word(content[-1]):
        return True
    if token.get("single_word") and content[0] in breaks:
        return True
    return cuts.drops_space and _is_word(content[0])


def _is_word(character: str) -> bool:
    """Whether a letter of a text can become this character, or end with it."""
    return unicodedata.category(character)[0] in "LM"
