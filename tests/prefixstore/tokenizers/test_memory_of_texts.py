"""The memory that a text takes in a tokenizer is bounded, and is given back."""

import subprocess
import sys
from pathlib import Path

import pytest

from warmpath.prefixstore.tokenizers.tokenizer import (
    MOST_GROWN_BYTES,
    FolderTokenizer,
    LongPieceError,
)

MEASURE = """
import sys, threading
from pathlib import Path
from warmpath.prefixstore.tokenizers.tokenizer import FolderTokenizer

def megabytes(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1000

tokenizer = FolderTokenizer(Path(sys.argv[1]))
texts = {"letter": [b"a" * (2 << 20)], "words": [b"quick brown fox, " * 4] * (8 << 20 >> 6)}
before = megabytes("VmRSS")
thread = threading.Thread(target=lambda: tokenizer.encode(texts[sys.argv[2]], at_start=True))
thread.start()
thread.join()
print(megabytes("VmHWM") - before, megabytes("VmRSS") - before)
"""


@pytest.mark.parametrize(("text", "at_once", "later"), [("letter", 400, 60), ("words", 300, 60)])
def test_a_text_takes_bounded_memory_and_gives_it_back(
    model_folder: Path, text: str, at_once: int, later: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(model_folder), text],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    most, left = map(float, done.stdout.split())
    assert most < at_once
    assert left < later


def test_a_piece_that_would_take_more_is_refused_and_a_long_text_of_words_is_not(
    model_folder: Path,
) -> None:
    tokenizer = FolderTokenizer(model_folder)
    with pytest.raises(LongPieceError, match="bytes in one piece"):
        tokenizer.encode([b"a" * (MOST_GROWN_BYTES + 1)], at_start=True)
    parts = [b" word" * 1000] * 1000
    assert (
        tokenizer.encode(parts, at_start=True) == tokenizer.encode(parts[:1], at_start=True) * 1000
    )
