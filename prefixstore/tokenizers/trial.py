"""Tries to load a tokenizer in a process of its own, with limits of memory and time.

A definition is an untrusted file, and loading runs it on a text. A load that exhausts the memory or
never ends costs only that process; the router reports it and goes on.
"""

import math
import resource
import subprocess
import sys
from pathlib import Path

from warmpath.prefixstore.tokenizers.tokenizer import FolderTokenizer, TokenizerUnavailableError
from warmpath.prefixstore.workers import isolated

MOST_BYTES = 4 << 30
"""Largest address space; a vocabulary of 262,144 tokens takes a quarter of it."""
MOST_SECONDS = 300.0
MOST_REASON = 1000
"""The most characters of a reason."""
REFUSED = 3
"""Exit status if loading failed; the reason is on standard output."""


def try_tokenizer(
    folder: Path, *, most_bytes: int = MOST_BYTES, most_seconds: float = MOST_SECONDS
) -> str:
    """Load a folder's tokenizer in another process; return its `disagreement`.

    Raises TokenizerUnavailableError if that fails.
    """
    command = [
        sys.executable,
        *isolated(__name__),
        str(folder),
        str(most_bytes),
        str(math.ceil(most_seconds)),
    ]
    try:
        ended = subprocess.run(  # noqa: S603  ourselves
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=most_seconds,
            check=False,
            env={},
        )
    except subprocess.TimeoutExpired as error:
        problem = f"{folder}: tokenizer.json: is not loaded after {most_seconds:g} s"
        raise TokenizerUnavailableError(problem) from error
    if ended.returncode == REFUSED:
        reason = ended.stdout.decode("utf-8", "replace")
        raise TokenizerUnavailableError(reason.strip()[:MOST_REASON])
    if ended.returncode:
        raise TokenizerUnavailableError(
            f"{folder}: tokenizer.json: a process that tried to load it ended with status "
            f"{ended.returncode}; it may take {most_bytes >> 20} MiB of memory"
        )
    return ended.stdout.decode()


def load_folder(folder: Path) -> FolderTokenizer:
    """Load a folder's tokenizer, after that has succeeded in another process."""
    return FolderTokenizer(folder, try_tokenizer(folder))


def main() -> int:
    """Load a folder's tokenizer; arguments: folder, most bytes of memory, most seconds of CPU time."""
    folder, most_bytes, most_seconds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))
    # The router kills it by the wall clock; this limit works when the router is gone.
    resource.setrlimit(resource.RLIMIT_CPU, (most_seconds, most_seconds))
    try:
        sys.stdout.write(FolderTokenizer(folder).disagreement)
    except TokenizerUnavailableError as error:
        if isinstance(error.__cause__, MemoryError):
            return 1  # the caller's message names the limit; MemoryError has no text
        sys.stdout.write(str(error))
        return REFUSED
    return 0
