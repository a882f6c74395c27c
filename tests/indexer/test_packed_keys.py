"""Keys made once are the keys that everything else makes."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpath.indexer.embedded import _compiled, packed_keys, stored_keys
from warmpath.indexer.keys.key import Chain, pack_words


@given(
    root=st.integers(0, 2**64 - 1),
    size=st.integers(1, 40),
    blocks=st.integers(0, 20),
    more=st.integers(0, 3),
    data=st.data(),
)
def test_keys_are_the_same_however_they_are_made(
    root: int, size: int, blocks: int, more: int, data: st.DataObject
) -> None:
    length = 4 * (size * blocks + more)
    tokens = data.draw(st.binary(min_size=length, max_size=length))
    extras = data.draw(
        st.just(())
        | st.lists(st.none() | st.binary(max_size=9), min_size=blocks, max_size=blocks).map(tuple)
    )
    chain = Chain(root, tokens, size, blocks, extras)
    assert packed_keys(chain) == pack_words(chain.keys())


@given(size=st.integers(1, 8), tokens=st.integers(0, 40))
def test_a_prompt_leaves_all_its_full_blocks_the_last_one_too(size: int, tokens: int) -> None:
    ids = bytes(range(4 * tokens))
    chain = Chain(5, ids, size, max(0, tokens - 1) // size)
    assert stored_keys(chain) == packed_keys(Chain(5, ids, size, tokens // size))
    looked_up = Chain(5, ids, size, chain.blocks, made=packed_keys(chain))
    assert stored_keys(looked_up) == stored_keys(chain)


def test_a_last_block_whose_key_is_not_known_is_left_out() -> None:
    chain = Chain(5, bytes(32), 4, 1, (b"the next token",))
    assert stored_keys(chain) == packed_keys(chain)


def test_made_keys_are_returned_as_they_are() -> None:
    assert packed_keys(Chain(1, b"", 16, 2, made=b"0123456789abcdef")) == b"0123456789abcdef"


def test_too_few_tokens_are_an_error() -> None:
    with pytest.raises(ValueError, match="buffer"):
        packed_keys(Chain(1, bytes(100), 16, 2))


def test_keys_are_made_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Chain(5, bytes(range(256)), 4, 16)
    for name in [name for name in sys.modules if name.startswith("warmpath.indexer.compiled")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numba", None)
    _compiled.cache_clear()
    try:
        assert _compiled() is None
        assert packed_keys(chain) == pack_words(chain.keys())
    finally:
        _compiled.cache_clear()
