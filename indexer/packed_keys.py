"""Makes a prompt's keys, packed, so that its look-ups and beliefs share them."""

import functools
from collections.abc import Callable

from indexer.keys.key import Chain
from indexer.keys.word import pack_words


def packed_keys(chain: Chain) -> bytes:
    """Return a chain's keys, packed (`indexer.keys.word`); compiled code makes them with Numba.

    With extras, or without Numba, pure Python makes them in at least five times as long.
    """
    if chain.made:
        return chain.made
    compiled = None if any(chain.extras) else _compiled()
    if compiled is None:
        return pack_words(chain.keys())
    return compiled(chain.tokens, chain.block_size, chain.blocks, chain.root)


@functools.cache
def _compiled() -> Callable[[bytes, int, int, int], bytes] | None:
    # Imported at the first call: importing Numba takes a while, and not every router has it.
    try:
        from indexer.compiled.make_keys import packed  # noqa: PLC0415
    except ImportError:
        return None
    return packed
