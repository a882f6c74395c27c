"""Encodes texts with `fastokens`, 10 to 100 times as fast as `tokenizers`, where both give the same ids.

`tokenizers` is the reference: it loads each definition, and `fastokens` is used only if it loads the
same one and agrees with it on a probe: every token of the vocabulary as a text, every added token, odd
Unicode and long runs. `prefixstore.rechecks` goes on comparing live texts. `fastokens` refuses
definitions with steps that it lacks (NFKC, Metaspace, Unigram) and tells no token's place in the text.
It releases the interpreter lock while it encodes.

Its caches are bounded: 10 MB a thread after 200 MB of different words. Its time is proportional to a
text's length: 0.005 us a byte of prose, 0.2 us of letters without spaces, up to 100 KB of them; 8 MB of
one letter take 3 s. So the limits of length and time that `tokenizers` needs are kept for it.
"""

import itertools
import os
from array import array
from collections.abc import Iterator, Sequence
from random import Random

# As for `tokenizers`: one worker encodes one text, and several workers run at once.
os.environ.setdefault("FASTOKENS_BPE_THREADS", "1")

import fastokens
import tokenizers

ID_BYTES = 4
PROBE_BYTES = 4096
"""Bytes of each text that vocabularies and code points are joined into."""
AROUND = ("", " ", "a", "  \n", "é")
"""Texts before and after each added token of the probe."""
RUNS = ("a", " ", "\n", "1", ".", "é", "日", "\u0301", "\U0001f469\u200d", "ab", "a ", "\r\n", "=-")
"""Texts that the probe repeats."""
RUN_LENGTHS = (1, 2, 3, 4, 7, 16, 33, 130)
LONGEST_RUN = 1000
MOST_ADDED = 4096
"""The most added tokens that the probe tests one by one; definitions have some dozens to a thousand."""
WRITTEN = 4096
"""Entries of the vocabulary that the probe has as they are written, beside the texts they stand for."""
CODE_POINTS = 4096
"""Code points drawn for the probe, with a fixed seed."""


class FastEncoder:
    """A definition in `fastokens`' form. Thread-safe."""

    def __init__(self, reference: tokenizers.Tokenizer) -> None:
        """Load the definition of `reference`, its added tokens included.

        Raises ValueError if `fastokens` refuses it.
        """
        self._encoder = fastokens.Tokenizer.from_json_str(reference.to_str())

    def encode(self, texts: Sequence[str]) -> list[bytes]:
        """Return the ids of each text, packed little-endian uint32, without special tokens.

        Raises ValueError or RuntimeError for a text that it cannot encode.
        """
        ids, offsets = self._encoder.encode_batch_flat(list(texts))
        if len(texts) == 1:
            return [ids]
        ends = [end * ID_BYTES for end in array("Q", offsets)]
        return [ids[begin:end] for begin, end in itertools.pairwise(ends)]


def probe(reference: tokenizers.Tokenizer) -> Iterator[str]:
    """Yield the texts on which both encoders have to agree."""
    rng = Random(0)  # noqa: S311  not for secrets
    decoded = reference.decode_batch(
        [[one] for one in range(reference.get_vocab_size())], skip_special_tokens=False
    )
    # Some run into each other, as in texts without spaces.
    yield from _joined([f"{one}{rng.choice(('', ' '))}" for one in decoded], "")
    written = sorted(reference.get_vocab())
    yield from _joined(rng.sample(written, min(len(written), WRITTEN)), " ")
    added = [one.content for one in reference.get_added_tokens_decoder().values()][:MOST_ADDED]
    yield from _joined([f"{rng.choice(AROUND)}{one}{rng.choice(AROUND)}" for one in added], "")
    yield from _joined([f"{one}{one} {one[:-1]}{one[1:]}" for one in added], "")
    yield from _joined([one.swapcase() for one in added], "")
    few = added if len(added) <= len(AROUND) ** 2 else rng.sample(added, len(AROUND) ** 2)
    for one in few:
        yield "-".join(f"{before}{one}{after}" for before in AROUND for after in AROUND)
    for run in RUNS:
        yield "x".join(run * length for length in RUN_LENGTHS)
        yield " y ".join(run * length for length in RUN_LENGTHS)
        yield run * LONGEST_RUN
    points = [rng.choice(_RANGES) for _ in range(CODE_POINTS)]
    drawn = [chr(rng.randrange(*one)) for one in points]
    for separator in ("", "a "):
        yield from _joined(drawn, separator)
    yield from ("", "\0", "\ufeff", "e\u0301\u0323", "\u1100\u1161\u11a8", "\u2028 \u00a0\u3000")


_RANGES = (
    *((0, 0x80), (0x80, 0x250), (0x250, 0x600), (0x600, 0xE00), (0xE00, 0x2000), (0x2000, 0x3000)),
    *((0x3000, 0xD800), (0xE000, 0x10000), (0x10000, 0x1F000), (0x1F000, 0x20000)),
    *((0x20000, 0x30000), (0xE0000, 0xE0200), (0x300, 0x370), (0x1F1E6, 0x1F200), (0x200B, 0x2010)),
)
"""Ranges of code points, from and to, that a probe draws from alike."""


def _joined(words: Sequence[str], separator: str) -> Iterator[str]:
    together: list[str] = []
    size = 0
    for word in words:
        together.append(word)
        size += len(word) + len(separator)
        if size >= PROBE_BYTES:
            yield separator.join(together)
            together, size = [], 0
    yield separator.join(together)


def disagreement(fast: FastEncoder, reference: tokenizers.Tokenizer) -> str:
    """Return where two encoders of one definition differ, without any text; empty if they agree."""
    for number, text in enumerate(probe(reference)):
        expected = reference.encode_batch_fast([text], add_special_tokens=False)[0].ids
        try:
            given = [*array("I", fast.encode([text])[0])]
        except (ValueError, RuntimeError) as error:
            return f"it fails on text {number} of the probe ({type(error).__name__})"
        if given != expected:
            return f"it gives other ids for text {number} of the probe"
    return ""
