"""Made-up tokens: the same again, wherever one begins."""

from hypothesis import given
from hypothesis import strategies as st

from warmpath.lab.simworker.sampler import RESERVED_TOKENS, extend_seed, next_token, seed_of

TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=20)


@given(TOKENS, TOKENS)
def test_a_seed_that_is_extended_is_that_of_all_tokens(first: list[int], then: list[int]) -> None:
    seed = seed_of(first)
    for token in then:
        seed = extend_seed(seed, token)
    assert seed == seed_of([*first, *then])


@given(st.binary(max_size=4), st.integers(0, 2**31 - 1), st.integers(0, 99), st.integers(1, 40))
def test_tokens_are_below_the_vocabulary_s_size_and_not_special(
    seed: bytes, last: int, position: int, size: int
) -> None:
    token = next_token(seed, last, position, size)
    assert 0 <= token < size
    assert token >= RESERVED_TOKENS or size <= RESERVED_TOKENS
