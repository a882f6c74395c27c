r"""Derives from a tokenizer's definition (tokenizer.json) where no token can span a place in a text.

A cut lies between a letter (`LETTERS`) and a character of `Cuts.before`: `some|_words`. The tokens of
the parts, joined, are the tokens of the whole text, because each step from text to ids treats the two
sides of a cut separately:

- **Added tokens** are searched first. A token spans the cut only if it contains such a pair, or absorbs
  white space after a letter at its end (`rstrip`); a token that needs a word boundary (`single_word`)
  could take the cut for one. A definition with such a token has no cuts.
- **Normalisers** that work on one character, or one cluster of characters, give the same on both
  sides: none of the letters combines with a space, a line end or a comma after it. The sets below name
  the normalisers that each kind of split allows. Of the others only those are accepted that replace
  `" "` by `"▁"`, shorten runs of spaces, which all lie after the cut, put one `"▁"` in front of the
  text (`Cuts.drops_space`), or strip white space at its end.
- **Pre-tokenizers** split the text into pieces that are tokenised separately:

  - Regular expressions (`Split`, `ByteLevel`). None of the alternatives in
    `prefixstore.cuts.expressions` matches a letter together with the character after it, none looks
    behind its start, and some match every letter. So a match ends at the cut, and the rest is matched
    as if the text began there. The look-ahead `(?!\S)` follows white space and reads one character.
  - White space (`Metaspace` that splits, `WhitespaceSplit`, `Whitespace`, BERT's).
- **The model** of a tokenizer that does not split (Llama 2, Gemma) merges over the cut only if some
  merge gives a token with a space after another character. A BPE without such a merge never joins the
  two sides, and merges on one side do not depend on the other. This does not hold for Unigram: its
  choice among equally good segmentations depends on the rounding of all scores before.

Any other definition has no cuts, and its texts are encoded whole.

A store looks a text up by slices of its UTF-8, so slices shared with an earlier text are found without
looking at their characters. It keeps the tokens up to the last cut before each slice's end. A cut
depends only on the bytes before that end, so texts with one beginning are cut at the same places there.
"""

import itertools
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from warmpath.prefixstore.cuts.expressions import (
    BREAKS,
    KNOWN,
    LETTERS,
    alternatives,
    match_every_letter,
)

_COMPOSING = frozenset({"NFC", "NFKC", "Lowercase"})
"""Normalisers that keep each of `LETTERS` one letter and do not change the character after it."""
_WITHOUT_SPACES = _COMPOSING | {"NFD", "NFKD", "StripAccents"}
"""Normalisers that insert no spaces."""
_LOCAL = _WITHOUT_SPACES | {"BertNormalizer", "Nmt", "Precompiled"}
"""Normalisers that work on one character or cluster at a time and never merge it with white space."""
_REWRITING = frozenset({"ByteLevel", "Metaspace"})
"""Pre-tokenizers that replace spaces by another character."""
_BY_WHITE_SPACE = frozenset({"WhitespaceSplit", "Whitespace", "BertPreTokenizer"})
SPACE_MARK = "▁"
"""The character that SentencePiece tokenizers write for a space."""


@dataclass(frozen=True, slots=True)
class Cuts:
    """The places where a text may be cut."""

    before: str
    """A cut lies after a letter and before one of these characters."""
    drops_space: bool = False
    """If true, a cut lies only before a space that a letter follows. A part that begins with that
    space is encoded without it, since the tokenizer prepends one to each part."""


def cuts_of(definition: Mapping[str, Any], normalise: Callable[[str], str] = str) -> Cuts | None:
    """Return the cuts of a tokenizer with this tokenizer.json, or None if none are proven.

    `normalise` applies the definition's normalisers to a text.
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
        # The token is searched in the text or, if `normalized`, in the normalised text.
        forms = {content, normalise(content)}
        if any(_reaches_over(token, form, cuts, normal.breaks) for form in forms):
            return None
    return cuts


def puts_space_in_front(definition: Mapping[str, Any]) -> bool | None:
    """Return whether a byte-level tokenizer prepends a space to a text; None if it is not one."""
    for step in _flat(definition.get("pre_tokenizer"), "pretokenizers"):
        if step.get("type") == "ByteLevel":
            return bool(step.get("add_prefix_space", True))
    return None


def _flat(step: Mapping[str, Any] | None, name: str) -> list[Mapping[str, Any]]:
    """Return a step's own steps if it is a Sequence, nested ones included; otherwise the step."""
    if step is None:
        return []
    if step.get("type") != "Sequence":
        return [step]
    return [one for part in step.get(name) or () for one in _flat(part, name)]


@dataclass(frozen=True, slots=True)
class Normal:
    """The effect of a tokenizer's normalisers on a text."""

    kinds: frozenset[str]
    """Names of the normalisers that are in `_LOCAL`."""
    marks: bool
    """Whether each space becomes `SPACE_MARK`."""
    marks_runs: bool
    """Whether several spaces become one `SPACE_MARK`."""
    prepends: bool
    """Whether a `SPACE_MARK` is put in front of the text."""

    @property
    def breaks(self) -> frozenset[str]:
        """The characters of `BREAKS`, and those that they can become."""
        become = "," if self.kinds & {"NFKC", "NFKD", "Precompiled"} else ""
        if self.marks or self.marks_runs:
            become += SPACE_MARK
        return frozenset(BREAKS + become)


def _normal(definition: Mapping[str, Any] | None) -> Normal | None:
    """Return the effect of the normalisers; None if one of them is not known."""
    kinds = set()
    marks = marks_runs = prepends = False
    for step in _flat(definition, "normalizers"):
        kind = str(step.get("type"))
        pattern, content = step.get("pattern") or {}, step.get("content")
        if kind in _LOCAL:
            kinds.add(kind)
        elif kind == "Strip" and not step.get("strip_left", True):
            continue  # it strips only the end of the text, and a cut lies before the white space
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
    """Return the characters before which the steps split a text after a letter; None: not known."""
    before = ""
    is_rewritten = False
    for step in steps:
        kind = step.get("type")
        if kind == "Split" and normal.marks and step.get("pattern") == {"String": " "}:
            continue  # the normalisers leave no space to split at
        if kind == "ByteLevel":
            found = BREAKS if step.get("use_regex", True) else ""
            if step.get("add_prefix_space", True) and not before:
                # The step prepends a space to every part that does not begin with one.
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
        # The steps after it see another character in place of a space.
        is_rewritten |= kind in _REWRITING
    return before


def _splits_still(kind: str, normal: Normal) -> bool:
    """Return whether a splitting step splits a text at the same places after it is normalised."""
    if kind == "Metaspace":
        return not normal.marks
    if normal.marks or normal.marks_runs:
        return False
    return kind in _BY_WHITE_SPACE or normal.kinds <= _COMPOSING


def _keeps_spaces_in_front(definition: Mapping[str, Any], normal: Normal) -> bool:
    """Return whether no merge of a BPE gives a token with a space after another character."""
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
    """Return whether an added token, searched as `content`, could span a cut or depend on one."""
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
    return unicodedata.category(character)[0] in "LM"


SLICE = 512
"""Bytes of a slice. When a text grows, about half a slice of known text is encoded again."""
FAST_SLICE = 4096
"""Bytes of a slice where half of it is encoded again in 15 us: fewer entries, for a small loss."""

CUT_BYTES = 8
"""The most bytes of the letter before a cut and the characters after it that are read."""

FindCut = Callable[[bytes, int, int], int]
"""Returns the last cut in raw[begin:end] after `begin`, or `begin` if there is none."""


def slices_of(raw: bytes, size: int = SLICE) -> list[bytes]:
    """Return a text's slices: full ones of `size` bytes and a shorter last one, possibly empty.

    As the last slice is never full, it cannot be mistaken for the beginning of a longer text.
    """
    return [raw[start : start + size] for start in range(0, len(raw) + 1, size)]


def cut_finder(cuts: Cuts) -> FindCut:
    """Return the function that finds a tokenizer's cuts in UTF-8."""
    behind = " (?=[A-Za-z])" if cuts.drops_space else f"[{re.escape(cuts.before)}]"
    pattern = re.compile(f"(?s:.*)[{LETTERS}](?={behind})")

    def find(raw: bytes, begin: int, end: int) -> int:
        # Bytes of a character that lies across an end become surrogates, which are no letters.
        found = pattern.match(raw[begin:end].decode(errors="surrogateescape"))
        return begin + len(found[0].encode(errors="surrogateescape")) if found else begin

    return find
