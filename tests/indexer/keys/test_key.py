"""Keys: equal prefixes, and nothing else, have equal keys, whoever makes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpath.indexer.embedded import packed_keys, stored_keys
from warmpath.indexer.keys.key import (
    Chain,
    Item,
    Keyspace,
    chain,
    extras_of,
    pack_tokens,
    pack_words,
    unpack_tokens,
)

ROOT = Keyspace(model="m", block_size=4).root()
TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=40)


def keys(tokens: list[int], root: int = ROOT) -> list[int]:
    return chain(root, pack_tokens(tokens), 4)


@given(TOKENS)
def test_only_full_blocks_have_keys(tokens: list[int]) -> None:
    assert len(keys(tokens)) == len(tokens) // 4
    assert unpack_tokens(pack_tokens(tokens)).tolist() == tokens


@given(TOKENS, TOKENS)
def test_keys_agree_exactly_as_deep_as_the_tokens_do(one: list[int], other: list[int]) -> None:
    common = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        common += 1
    for depth, (left, right) in enumerate(zip(keys(one), keys(other), strict=False)):
        assert (left == right) == (common >= (depth + 1) * 4)


@given(TOKENS, st.integers(0, 10))
def test_a_chain_can_be_continued_at_any_block(tokens: list[int], blocks: int) -> None:
    whole = keys(tokens)
    blocks = min(blocks, len(whole))
    parent = whole[blocks - 1] if blocks else ROOT
    assert chain(parent, pack_tokens(tokens[blocks * 4 :]), 4) == whole[blocks:]


def test_every_part_of_the_keyspace_seeds_the_chain() -> None:
    base = {"model": "m", "block_size": 4}
    spaces = [
        base,
        base | {"model": "n"},
        base | {"block_size": 8},
        base | {"lora": "m"},
        base | {"cache_salt": "m"},
        base | {"hash_seed": "m"},
        {"model": "mm", "block_size": 4},
        base | {"lora": "a", "cache_salt": "b"},
        base | {"lora": "ab"},
        base | {"cache_salt": "ab"},
    ]
    assert len({Keyspace(**space).root() for space in spaces}) == len(spaces)  # type: ignore[arg-type]


def test_an_item_changes_the_keys_from_its_first_block_on() -> None:
    tokens = pack_tokens([9] * 16)
    plain = chain(ROOT, tokens, 4)
    item = Item("cat", 5, 6)
    with_item = chain(ROOT, tokens, 4, extras_of([item], 4, 4))
    other = chain(ROOT, tokens, 4, extras_of([Item("dog", 5, 6)], 4, 4))
    assert with_item[0] == plain[0] == other[0]
    assert len({plain[1], with_item[1], other[1]}) == 3
    assert len({plain[3], with_item[3], other[3]}) == 3


def test_the_same_item_at_another_place_is_another_key() -> None:
    tokens = pack_tokens([9] * 8)
    one = chain(ROOT, tokens, 4, extras_of([Item("cat", 0, 2)], 4, 2))
    other = chain(ROOT, tokens, 4, extras_of([Item("cat", 1, 2)], 4, 2))
    assert one[0] != other[0]


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
    prompt = Chain(root, tokens, size, blocks, extras)
    assert packed_keys(prompt) == pack_words(prompt.keys())


@given(size=st.integers(1, 8), tokens=st.integers(0, 40))
def test_a_prompt_leaves_all_its_full_blocks_the_last_one_too(size: int, tokens: int) -> None:
    ids = bytes(range(4 * tokens))
    prompt = Chain(5, ids, size, max(0, tokens - 1) // size)
    assert stored_keys(prompt) == packed_keys(Chain(5, ids, size, tokens // size))
    looked_up = Chain(5, ids, size, prompt.blocks, made=packed_keys(prompt))
    assert stored_keys(looked_up) == stored_keys(prompt)


def test_a_last_block_whose_key_is_not_known_is_left_out() -> None:
    prompt = Chain(5, bytes(32), 4, 1, (b"the next token",))
    assert stored_keys(prompt) == packed_keys(prompt)


def test_made_keys_are_returned_as_they_are() -> None:
    assert packed_keys(Chain(1, b"", 16, 2, made=b"0123456789abcdef")) == b"0123456789abcdef"


def test_too_few_tokens_are_an_error() -> None:
    with pytest.raises(ValueError, match="buffer"):
        packed_keys(Chain(1, bytes(100), 16, 2))
