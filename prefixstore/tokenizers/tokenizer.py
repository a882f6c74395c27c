"""Tokenizers: turn text into the token ids that the engine would compute.

`Tokenizer` is the contract. `FolderTokenizer` loads a model's tokenizer from a local folder with
HuggingFace's `tokenizers`, and encodes with `fastokens` where both agree
(`prefixstore.tokenizers.fast_encoder`). One file, since every part reads the one definition.
"""

import ctypes
import itertools
import json
import logging
import os
import re
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import tokenizers

from warmpath.prefixstore.cuts.proof import cut_finder, cuts_of, puts_space_in_front
from warmpath.prefixstore.tokenizers.added_tokens import add_missing, described
from warmpath.prefixstore.tokenizers.fast_encoder import FastEncoder, disagreement
from warmpath.prefixstore.tokenizers.growth import checked_growth

log = logging.getLogger(__name__)

ID_BYTES = 4


def pack_ids(ids: list[int]) -> bytes:
    """Pack ids, 4 bytes each, little-endian. Raises OverflowError for one that is not a uint32."""
    packed = array("I", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


class IdsError(ValueError):
    """A value is not a list of token ids; the message does not quote it."""


def pack(value: Any) -> bytes:
    """Pack ids as `pack_ids` does, from decoded JSON. Raises IdsError for anything but a list of ids."""
    # By type, since isinstance would accept booleans.
    if not isinstance(value, list) or not set(map(type, value)) <= {int}:
        raise IdsError("has no list of token ids as 'tokens'")
    try:
        return pack_ids(value)
    except OverflowError as error:
        raise IdsError("has a token id that is not a uint32") from error


# One worker tokenises one text, and several workers run at once: no further threads are needed.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

PROBE = (
    "The quick brown fox, don't you KNOW, jumped over 12345 lazy dogs; it's 3.14 été naïve.\n\n"
    "def main(argv):\r\n\tif (argv is None):\n        return {'a': [1, 2], \"b\": None}  # this\n"
    "日本語と，中文。한국어 русский עברית हिन्दी عربي  two  spaces\n"
    "e\u0301 \U0001f469\u200d\U0001f469\u200d\U0001f467 end of the probe "
) * 4
"""A text that is encoded both whole and cut when a tokenizer is loaded, to test the proven cuts."""

MOST_GROWN_BYTES = 4 << 20
"""The most normalised bytes of one piece of text. `tokenizers` encodes it in one call, with about 150
bytes of memory for each of them: 600 MB."""
TOGETHER_BYTES = 512 << 10
"""The most normalised bytes of several pieces that are encoded in one call."""
AT_ONCE_BYTES = 16 << 10
"""A text up to this length is encoded by `fastokens` at once, whole, without a thread or a store.

Prose takes it 0.1 ms, letters without spaces 4 ms at worst, as 4 KB of these take `tokenizers`. That
worst case sets the length: of prose, whose words it has seen, even 64 KB take less time than by way of
the store, 0.6 of it (16 KB: 0.26).
"""

_TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""glibc's function, which returns freed memory to the system; None with another library.

glibc keeps what a thread has freed below a block that is still in use, such as an entry of a
tokenizer's cache: one long text can leave hundreds of megabytes behind."""

MOST_ENDS_BYTES = 1 << 20
"""The most UTF-8 bytes of a text for which `token_ends` returns anything."""

PROBED_TOKENS = 1000
"""The most tokens of the vocabulary that are appended to the probe."""


class TokenizerUnavailableError(Exception):
    """A tokenizer cannot be loaded or used; the message names its source and the reason."""


_RAW = re.compile(r"\[(?:Errno|SSL)[^\]]*\] ?| ?\(_ssl\.c:\d+\)")
"""Numbers of the system's errors, and places in OpenSSL's code, in an error's text."""


def in_words(error: BaseException) -> str:
    """Return a connection's error in words, without numbers and places in a library's code."""
    said = _RAW.sub("", str(error)) or type(error).__name__
    return f"{said[0].lower()}{said[1:]}".replace("connection refused", "nothing listens there")


class InvalidTextError(Exception):
    """A text cannot be tokenised."""


class LongPieceError(InvalidTextError):
    """A text has a piece that cannot be cut, and to encode it would take too much memory."""


class Tokenizer(Protocol):
    """The contract of tokenizers. Ids are packed little-endian uint32, 4 bytes each."""

    @property
    def vocab_size(self) -> int:
        """One more than the highest valid token id; 0: not known."""

    @property
    def prefix(self) -> bytes:
        """Ids before the text's own if special tokens are added."""

    @property
    def suffix(self) -> bytes:
        """Ids after the text's own if special tokens are added."""

    @property
    def has_cuts(self) -> bool:
        """Whether the tokenizer has proven cuts (`prefixstore.cuts.proof`)."""

    def cut(self, raw: bytes, begin: int, end: int) -> int:
        """Return the last cut in raw[begin:end] after `begin`, or `begin` if there is none.

        The joined tokens of the parts are the whole text's tokens. The result depends only on these
        bytes.
        """

    def encode(self, parts: Sequence[bytes], *, at_start: bool) -> list[bytes]:
        """Return the ids of each of a text's consecutive parts, without special tokens. Thread-safe.

        `at_start`: the first part begins the text. Raises UnicodeDecodeError, InvalidTextError for a
        part that is too long, and TokenizerUnavailableError if the tokenizer fails.
        """


class Asking:
    """Base of tokenizers that ask an engine: they encode texts whole, and mostly wait."""

    has_cuts = False

    def cut(self, raw: bytes, begin: int, end: int) -> int:  # noqa: ARG002  there is none
        return begin


class FolderTokenizer:
    """A model's tokenizer from its folder: tokenizer.json, tokenizer_config.json, chat template."""

    def __init__(self, folder: Path, disagreement: str | None = None) -> None:
        """Load a folder. Raises TokenizerUnavailableError, naming the file that cannot be used.

        `disagreement` is that of an earlier trial with the same folder; None: none was made.
        """
        reading = "tokenizer.json"
        try:
            definition = (folder / reading).read_text(encoding="utf-8")
            parsed = json.loads(definition)
            self._growth = checked_growth(parsed)
            self._tokenizer = tokenizers.Tokenizer.from_str(definition)
            reading = "config.json"
            model_config = _optional_json(folder / reading)
            reading = "tokenizer_config.json"
            self._config = _optional_json(folder / reading)
            add_missing(self._tokenizer, self._config)
            self.chat_template = _template(folder, self._config)
        except Exception as error:
            # `tokenizers` raises plain Exception for a broken definition.
            raise TokenizerUnavailableError(f"{folder}: {reading}: {error}") from error
        wanted = self._config.get("add_prefix_space")
        if wanted is not None and puts_space_in_front(parsed) not in (None, wanted):
            log.warning(
                "%s: tokenizer_config.json has add_prefix_space = %s, tokenizer.json the opposite; "
                "tokenizer.json is used here, but an engine may use the other",
                folder, wanted,
            )  # fmt: skip
        # Truncation and padding are left to the engine.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        vocab = self._tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = max(
            max(vocab.values(), default=-1) + 1, int(model_config.get("vocab_size") or 0)
        )
        self.prefix, self.suffix = self._affixes(folder, vocab)
        normalizer = self._tokenizer.normalizer
        cuts = cuts_of(
            {**parsed, "added_tokens": described(self._tokenizer)},
            normalizer.normalize_str if normalizer else str,
        )
        self.has_cuts = cuts is not None
        self.fast: FastEncoder | None = None
        """Encodes in place of `tokenizers`; None if it cannot, or if they do not agree."""
        self.disagreement = ""
        """Where `fastokens` gave other ids than `tokenizers`; empty if nowhere."""
        self._use_fast(folder, disagreement)
        if cuts:
            self._find_cut = cut_finder(cuts)
            self._drops_space = cuts.drops_space
            self._check_cuts(folder, list(vocab))

    def _use_fast(self, folder: Path, found: str | None) -> None:
        try:
            fast = FastEncoder(self._tokenizer)
        except ValueError as error:
            log.info("%s: fastokens refuses it: %s", folder, error)
            return
        self.disagreement = disagreement(fast, self._tokenizer) if found is None else found
        if not self.disagreement:
            self.fast = fast

    @property
    def at_once_bytes(self) -> int:
        """The most UTF-8 bytes of a text that is encoded in a few milliseconds at worst; 0: none is."""
        if self.fast is None or not self.has_cuts:
            return 0
        return min(AT_ONCE_BYTES, TOGETHER_BYTES // self._growth)

    def encode_at_once(self, text: str) -> bytes:
        """Return the ids of a whole text of up to `at_once_bytes`, as `encode` does."""
        return self._ids([text])[0]

    def stay_slow(self, disagreement: str) -> None:
        """Encode with `tokenizers` alone from now on."""
        self.fast, self.disagreement = None, disagreement

    def _plain_and_whole(self, text: str) -> tuple[list[int], list[int]]:
        try:
            plain = self._tokenizer.encode(text, add_special_tokens=False).ids
            return plain, self._tokenizer.encode(text, add_special_tokens=True).ids
        except Exception:  # noqa: BLE001  `tokenizers` raises nothing else
            return [], []

    def _check_cuts(self, folder: Path, vocab: Sequence[str]) -> None:
        words = "".join(vocab[:: len(vocab) // PROBED_TOKENS + 1])
        raw = (PROBE + words.replace("Ġ", " ").replace("▁", " ")).encode()
        places = [0]
        for end in range(64, len(raw), 64):
            places.append(self.cut(raw, places[-1], end))
        places.append(len(raw))
        parts = [raw[one:other] for one, other in itertools.pairwise(places)]
        try:
            cut = b"".join(self.encode(parts, at_start=True))
            is_whole = cut == self.encode([raw], at_start=True)[0]
        except TokenizerUnavailableError:
            is_whole = False  # it fails on the probe, so its cuts remain untested
        else:
            if not is_whole:
                log.error(
                    "%s: cut texts have other tokens than whole ones; texts are not cut", folder
                )
        self.has_cuts = is_whole

    def _affixes(self, folder: Path, vocab: Iterable[str]) -> tuple[bytes, bytes]:
        """Return the special tokens before and after a text, found by encoding short probes."""
        # A vocabulary may lack a probe's characters; a tokenizer then drops them, or fails.
        probes = itertools.chain(("a", "0", "A"), vocab)
        pairs = map(self._plain_and_whole, probes)
        tried = list(itertools.islice((pair for pair in pairs if pair[0]), 3))
        plain, whole = tried[0] if tried else ([], [])
        for start in range(len(whole) - len(plain) + 1):
            before, after = whole[:start], whole[start + len(plain) :]
            if tried and all(all_ids == before + ids + after for ids, all_ids in tried):
                return pack_ids(before), pack_ids(after)
        raise TokenizerUnavailableError(f"{folder}: special tokens are not put around the text")

    @property
    def special_tokens(self) -> Mapping[str, str]:
        """Special tokens by name (`bos_token`, …), as a chat template may use them."""
        named = {}
        for name, value in self._config.items():
            text = value.get("content") if isinstance(value, dict) else value
            if name.endswith("_token") and isinstance(text, str):
                named[name] = text
        return named

    def cut(self, raw: bytes, begin: int, end: int) -> int:
        return self._find_cut(raw, begin, end) if self.has_cuts else begin

    def encode(self, parts: Sequence[bytes], *, at_start: bool) -> list[bytes]:
        most, most_together = MOST_GROWN_BYTES // self._growth, TOGETHER_BYTES // self._growth
        encoded: list[bytes] = []
        together: list[bytes] = []
        size = 0
        for part in parts:
            if len(part) > most:
                raise LongPieceError(
                    f"has {len(part)} bytes in one piece; its tokenizer may make {self._growth} of "
                    f"each, so at most {most} are taken"
                )
            if together and size + len(part) > most_together:
                encoded += self._encode(together, at_start=at_start and not encoded)
                together, size = [], 0
            together.append(part)
            size += len(part)
        return encoded + self._encode(together, at_start=at_start and not encoded)

    def token_ends(self, text: str, ids: bytes) -> list[int]:
        """Return for each token of a text the number of characters up to its end. Thread-safe.

        `ids` are those of the whole text, packed, with or without special tokens. The result is empty
        if the text is too long, or if other ids are found for it. It takes as long as `encode`.
        """
        if len(text.encode(errors="replace")) > MOST_ENDS_BYTES:
            return []
        try:
            encoding = self._tokenizer.encode(text, add_special_tokens=False)
        except Exception:  # noqa: BLE001  `tokenizers` raises nothing else
            return []
        own = pack_ids(encoding.ids)
        ends = list(itertools.accumulate((end for _, end in encoding.offsets), max))
        if ids == own:
            return ends
        if ids != self.prefix + own + self.suffix:
            return []
        before, after = len(self.prefix) // ID_BYTES, len(self.suffix) // ID_BYTES
        return [0] * before + ends + [len(text)] * after

    def differs(self, part: bytes, ids: bytes, *, at_start: bool) -> bool:
        """Return whether `tokenizers` gives a part of a text other ids than these. Thread-safe."""
        try:
            return self._encode_slowly(self._texts([part], at_start=at_start))[0] != ids
        except TokenizerUnavailableError:
            return True

    def _texts(self, parts: Sequence[bytes], *, at_start: bool) -> list[str]:
        texts = [part.decode() for part in parts]
        if self.has_cuts and self._drops_space:
            # Each later part begins with the space that the tokenizer itself prepends.
            texts = [
                text if at_start and not number else text[1:] for number, text in enumerate(texts)
            ]
        return texts

    def _encode(self, parts: Sequence[bytes], *, at_start: bool) -> list[bytes]:
        packed = self._ids(self._texts(parts, at_start=at_start))
        if _TRIM and sum(map(len, parts)) * self._growth > TOGETHER_BYTES:
            _TRIM(0)  # it takes tens of milliseconds
        return packed

    def _ids(self, texts: Sequence[str]) -> list[bytes]:
        if self.fast is None:
            return self._encode_slowly(texts)
        try:
            return self.fast.encode(texts)
        except (ValueError, RuntimeError):
            # A limit of its regular expressions, say, leaves the texts to `tokenizers`.
            return self._encode_slowly(texts)

    def _encode_slowly(self, texts: Sequence[str]) -> list[bytes]:
        try:
            encodings = self._tokenizer.encode_batch_fast([*texts], add_special_tokens=False)
        except Exception as error:
            # `tokenizers` raises plain Exception, for instance if the unknown token is not in the
            # vocabulary.
            raise TokenizerUnavailableError(f"it fails on this text: {error}") from error
        return [pack_ids(encoding.ids) for encoding in encodings]


def check_text(text: str) -> bytes:
    """Return a text's UTF-8. Raises InvalidTextError for a lone surrogate."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        problem = f"is not Unicode text: a lone surrogate at character {error.start}"
        raise InvalidTextError(problem) from error


def _optional_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    value = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(value, dict):
        raise TypeError(f"{path.name} is not a JSON object")
    return value


def _template(folder: Path, config: Mapping[str, Any]) -> str | dict[str, str] | None:
    """Return the model's chat template, or several by name; None if it has none.

    The file chat_template.jinja goes before tokenizer_config.json.
    """
    path = folder / "chat_template.jinja"
    if path.exists():
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        return {str(one["name"]): str(one["template"]) for one in template} or None
    return template if isinstance(template, str) else None
