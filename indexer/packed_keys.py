"""Makes a prompt's keys, packed, so that its look-ups and beliefs share them."""

import functools
from collections.abc import Callable

from warmpath.indexer.keys.key import Chain
from warmpath.indexer.keys.token import TOKEN_BYTES
from warmpath.indexer.keys.word import WORD_BYTES, pack_words, unpack_words


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


def stored_keys(chain: Chain) -> bytes:
    """Return the packed keys of the blocks that a prompt leaves in a cache.

    They are those of its chain, and that of a block which ends with its last token: the prompt itself
    could not find that block, but a longer one finds it. With extras its key is not known.
    """
    made = packed_keys(chain)
    rest = chain.tokens[chain.blocks * chain.block_size * TOKEN_BYTES :]
    if chain.extras or len(rest) != chain.block_size * TOKEN_BYTES:
        return made
    parent = unpack_words(made[-WORD_BYTES:])[0] if made else chain.root
    return made + packed_keys(Chain(parent, rest, chain.block_size, 1))


@functools.cache
def _compiled() -> Callable[[bytes, int, int, int], bytes] | None:
    # Imported at the first call: importing Numba takes a while, and not every router has it.
    try:
        from warmpath.indexer.compiled.make_keys import packed  # noqa: PLC0415
    except ImportError:
        return None
    return packed
