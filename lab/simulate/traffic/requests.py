"""Requests of a log or a trace: when they came, how long they are, which blocks their prompts have."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import xxhash

from warmpath.indexer.keys.key import pack_words


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One request of a log or a trace."""

    at: float
    """Arrival in seconds; only differences between requests count."""
    prompt_tokens: int
    output_tokens: int
    keys: tuple[int, ...]
    """A 64-bit key for each block, the last one included even if it is not full."""
    session: str = ""
    affinity: str = ""
    """The session's id, or a guess (`with_affinity`); empty before it is made."""
    agent: str = ""
    """The name of a session's sub-agent that sent it; empty for the session itself."""
    took: float = 0.0
    """Seconds that the logged answer took; 0 where the log does not say."""
    pause: float | None = None
    """Seconds since the answer before, where they are known."""
    answer_keys: tuple[int, ...] = ()
    """The keys of the blocks that the answer fills, where the next prompt has them."""

    @property
    def packed_keys(self) -> bytes:
        """The keys in the packed form of the index."""
        return pack_words(self.keys)

    @property
    def block_hashes(self) -> list[bytes]:
        """The keys as block hashes of simulated engines, whose events have them as integers."""
        return _hashes(self.keys)

    @property
    def answer_hashes(self) -> list[bytes]:
        """The answer's keys as block hashes."""
        return _hashes(self.answer_keys)


@dataclass(frozen=True, slots=True)
class LoggedTraffic:
    """Requests in the order of their arrival."""

    requests: Sequence[LoggedRequest]
    block_size: int
    is_approximate: bool = False
    """Whether texts were cut into blocks by characters, since the tokens are not known."""
    bad_lines: int = 0
    """How many lines of the file were left out, since they are wrong."""
    first_bad_lines: Sequence[str] = ()
    """The first lines left out: each one's number, and what is wrong."""
    is_closed: bool = False
    """Whether requests have no times of their own: each follows the answer before."""


def _hashes(keys: Iterable[int]) -> list[bytes]:
    return [key.to_bytes(8, "big") for key in keys]


def with_affinity(requests: Sequence[LoggedRequest]) -> list[LoggedRequest]:
    """Guess the session of each request without one: by its first block that few requests share.

    A block that many requests share is a system prompt, not a session.
    """
    if all(one.session for one in requests):
        return [replace(one, affinity=one.session) for one in requests]
    frequency = Counter(key for one in requests for key in one.keys)
    common = max(50, len(requests) * 0.005)
    found = []
    for number, one in enumerate(requests):
        key = next((key for key in one.keys if frequency[key] <= common), None)
        guess = f"alone/{number}" if key is None else f"block/{key:x}"
        found.append(replace(one, affinity=one.session or guess))
    return found


Name = int | str


def chained(root: int, names: Sequence[Name]) -> tuple[int, ...]:
    """Return a key for each block, made of its name and the key before; `root` is before the first."""
    keys = []
    key = root
    for name in names:
        key = xxhash.xxh64_intdigest(str(name).encode(errors="surrogatepass"), key)
        keys.append(key)
    return tuple(keys)


def check_count(field: str, count: int, tokens: int, size: int) -> None:
    """Raise ValueError, naming `field`, unless `count` is that of all blocks or of the full ones."""
    full, all_of_them = tokens // size, -(-tokens // size)
    if not full <= count <= all_of_them:
        raise ValueError(
            f"{field}: {count} for {tokens} tokens; with a block size of {size} there must be "
            f"{full} (full blocks only) or {all_of_them} (all blocks)"
        )
