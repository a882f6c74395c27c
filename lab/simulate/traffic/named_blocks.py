"""Blocks that a line names by numbers or strings: their keys, and how many a prompt has."""

from collections.abc import Sequence

import xxhash

Name = int | str


def chained(root: int, names: Sequence[Name]) -> tuple[int, ...]:
    """Return a chained key for each block."""
    keys = []
    key = root
    for name in names:
        key = xxhash.xxh64_intdigest(str(name).encode(errors="surrogatepass"), key)
        keys.append(key)
    return tuple(keys)


def check_count(field: str, count: int, tokens: int, size: int) -> None:
    """Raise ValueError unless a prompt has a name for each block, or for each full one."""
    full, all_of_them = tokens // size, -(-tokens // size)
    if not full <= count <= all_of_them:
        raise ValueError(
            f"{field}: {count} for {tokens} tokens; with a block size of {size} there must be "
            f"{full} (full blocks only) or {all_of_them} (all blocks)"
        )
