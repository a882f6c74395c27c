"""Marks of prompts that other routers have sent."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpath.indexer.keys.key import WORD_BYTES, pack_words
from warmpath.router.peers.marks import (
    LEAST_PART,
    MOST_BLOCKS,
    PER_OCTAVE,
    MarkedPrompt,
    Marks,
    marked,
    places_of,
)

STEP = 2 ** (1 / PER_OCTAVE)
"""Two places are at most this factor apart, besides rounding."""


def keys(seed: int, blocks: int, after: bytes = b"") -> bytes:
    """Return the keys of a prompt that begins with `after` and goes on in its own way."""
    rng = Random(seed)
    own = blocks - len(after) // WORD_BYTES
    return after + pack_words([rng.getrandbits(64) for _ in range(own)])


@given(common=st.integers(0, 3000), sent=st.integers(1, 3000), asked=st.integers(1, 3000))
def test_a_common_beginning_is_known_to_within_a_twelfth_of_an_octave(
    common: int, sent: int, asked: int
) -> None:
    beginning = keys(0, common)
    first = keys(1, max(sent, common), beginning)[: sent * WORD_BYTES]
    second = keys(2, max(asked, common), beginning)[: asked * WORD_BYTES]
    common = min(common, sent, asked)
    marks = Marks()
    marks.replace([marked("p", 3, first)])
    found = marks.match(second)
    assert set(found) <= {("p", 3)}
    blocks = found.get(("p", 3), 0)
    assert blocks <= common
    if common * LEAST_PART >= sent * STEP + 1:
        assert blocks >= common / STEP - 1
    if common <= PER_OCTAVE and common * LEAST_PART >= sent:
        assert blocks == common, "short beginnings are known exactly"


@given(st.integers(1, 2 * MOST_BLOCKS))
def test_a_prompt_of_any_length_has_few_marks(blocks: int) -> None:
    assert 1 <= len(places_of(min(blocks, MOST_BLOCKS))) <= 2 * PER_OCTAVE + 2


def test_the_longest_beginning_counts_for_each_rank() -> None:
    prompt = keys(1, 600)
    marks = Marks()
    assert not marks
    marks.replace(
        marked(pod, 0, prompt[: blocks * WORD_BYTES])
        for pod, blocks in (("a", 100), ("a", 400), ("b", 200))
    )
    assert marks
    found = marks.match(prompt)
    assert 400 / STEP - 1 <= found["a", 0] <= 400
    assert 200 / STEP - 1 <= found["b", 0] <= 200
    assert not marks.match(b"")
    marks.replace([])
    assert not marks
    assert not marks.match(prompt)


@pytest.mark.parametrize("size", [0, 8, 8 * len(places_of(500)) - 1, 8 * len(places_of(500)) + 8])
def test_a_prompt_with_another_number_of_marks_is_not_possible(size: int) -> None:
    assert marked("p", 0, keys(1, 500)).is_possible
    assert not MarkedPrompt("p", 0, 500, bytes(size)).is_possible
