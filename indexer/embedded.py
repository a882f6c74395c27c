"""Makes the embedded index, and the compiled or the pure form of the state behind each rank.

Also makes a prompt's keys, packed, so that its look-ups and beliefs share them.
"""

import gc
import logging
import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from warmpath.indexer.follow.instance import RankSource
from warmpath.indexer.index.contract import Index
from warmpath.indexer.keys.key import TOKEN_BYTES, WORD_BYTES, Chain, pack_words, unpack_words
from warmpath.indexer.resolve.rank_slots import RankSlots
from warmpath.indexer.resolve.rank_state import PureState, RankState
from warmpath.indexer.resolve.resolver import Resolver

if TYPE_CHECKING:
    from warmpath.indexer.compiled.memory import Memory

log = logging.getLogger(__name__)


def embedded_index(max_bytes: int, memory: "Memory | None" = None) -> Index:
    """Return an empty index of at most `max_bytes`. Raises ImportError if Numba is not installed.

    Other processes of this router may read it in `memory`, if that is given.

    The first index on a machine takes up to a minute to compile, a later process half a second to load.
    """
    try:
        from warmpath.indexer.compiled.array_index import ArrayIndex  # noqa: PLC0415  needs Numba
    except ModuleNotFoundError as error:
        problem = f"the index needs {error.name}: pip install 'warmpath-router[router]'"
        raise ModuleNotFoundError(problem, name=error.name) from None
    warm_up_compiled()
    return ArrayIndex(max_bytes, memory=memory)


@cache
def warm_up_compiled() -> None:
    """Compile the functions of the index, or load them from disk; once per process.

    It does nothing where they were compiled ahead.

    Logs a warning before it compiles the first that is not on disk: Python writes warnings to standard
    error where a program has set up no logging. Two processes compile then (`FirstCompilation`).
    """
    from warmpath.indexer.compiled import jit  # noqa: PLC0415

    if jit.AHEAD is not None:
        return
    from numba.core.event import install_listener  # noqa: PLC0415

    from warmpath.indexer.compiled.array_index import ArrayIndex  # noqa: PLC0415
    from warmpath.indexer.compiled.first_compilation import FirstCompilation  # noqa: PLC0415
    from warmpath.indexer.compiled.warm_up import warm_up  # noqa: PLC0415

    begun = time.monotonic()
    first = FirstCompilation()
    # Collecting garbage takes an eighth of the compiler's time, and finds little.
    collects = gc.isenabled()
    gc.disable()
    try:
        with install_listener("numba:compile", first):
            warm_up(ArrayIndex(1 << 20), first.await_helper)
    finally:
        if collects:
            gc.enable()
    log.info("the compiled index was ready after %.1f s", time.monotonic() - begun)


def new_state(
    source: RankSource,
    index: Index,
    slots: RankSlots,
    *,
    hash_seed: str,
    orphan_bytes: int,
    is_pure: bool = False,
) -> RankState:
    """Return the state to which batches are applied: a compiled one unless `is_pure` or impossible."""
    from warmpath.indexer.compiled.array_index import ArrayIndex  # noqa: PLC0415  needs Numba
    from warmpath.indexer.compiled.array_rank import ArrayState  # noqa: PLC0415

    if source.dialect and isinstance(index, ArrayIndex) and not is_pure:
        return ArrayState(
            source.model,
            hash_seed,
            orphan_bytes=orphan_bytes,
            index=index,
            slots=slots,
            dialect=source.dialect,
            decode=source.decode,
        )
    resolver = Resolver(source.model, hash_seed, orphan_bytes=orphan_bytes, waiting=index.waiting)
    return PureState(resolver, slots)


def packed_keys(chain: Chain) -> bytes:
    """Return a chain's keys, packed (`indexer.keys.key`).

    Compiled code makes them; with extras pure Python does, in at least five times as long.
    """
    if chain.made:
        return chain.made
    if any(chain.extras):
        return pack_words(chain.keys())
    return _packed()(chain.tokens, chain.block_size, chain.blocks, chain.root)


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
    return made + pack_words(Chain(parent, rest, chain.block_size, 1).keys())


@cache
def _packed() -> Callable[[bytes, int, int, int], bytes]:
    # Imported at the first call: importing Numba takes a while.
    from warmpath.indexer.compiled.keys import packed  # noqa: PLC0415

    return packed
