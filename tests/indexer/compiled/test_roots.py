"""The table of roots finds what it has, and gives out nobody else's."""

from random import Random

import numpy as np
from numpy.typing import NDArray

from warmpath.indexer.compiled.jit import compiled
from warmpath.indexer.compiled.names.roots import (
    MOST,
    TEXT,
    RootTable,
    learn,
    nbytes,
    new_roots,
    place_of,
)


def test_what_was_learned_last_is_found_and_what_gave_way_is_not_mistaken() -> None:
    rng = Random(1)
    texts = [
        ("a" * rng.randrange(5), "s" * rng.randrange(3) + str(rng.randrange(3000)))
        for _ in range(6000)
    ]
    roots, keys = new_roots(), {text: number for number, text in enumerate(texts)}
    found = 0
    for text in texts:
        roots = learn(roots, *text, keys[text])
        at = find(roots, *text)
        assert int(roots.keys[at]) == keys[text]
        other = rng.choice(texts)
        at = find(roots, *other)
        if at >= 0:
            found += 1
            assert int(roots.keys[at]) == keys[other]
    assert 100 < found < 4000
    assert len(roots.words) == MOST


def test_as_many_tenants_as_a_few_are_all_found() -> None:
    roots = new_roots()
    texts = [("adapter", f"tenant-{number}") for number in range(40)]
    for number, text in enumerate(texts):
        roots = learn(roots, *text, number)
    assert [int(roots.keys[find(roots, *text)]) for text in texts] == list(range(40))
    assert nbytes(roots) < 50_000


def test_where_adapter_ends_and_salt_begins_matters() -> None:
    roots = learn(new_roots(), "ab", "c", 1)
    assert find(roots, "a", "bc") == -1
    assert find(roots, "ab", "") == -1
    roots = learn(roots, "a", "bc", 2)
    assert int(roots.keys[find(roots, "a", "bc")]) == 2
    assert find(new_roots(), "", "") == -1


def test_what_is_too_long_or_no_ascii_is_left_to_the_resolver() -> None:
    for salt in ("s" * (TEXT + 1), "\u00e9"):
        assert not learn(new_roots(), "", salt, 1).lengths.any()


@compiled
def in_bytes(
    roots: RootTable, data: NDArray[np.uint8], lora_at: int, lora: int, salt_at: int, salt: int
) -> int:
    """Return the place: Python calls no function that is inlined."""
    return place_of(roots, data, lora_at, lora, salt_at, salt)


def find(roots: RootTable, lora: str, salt: str) -> int:
    """Return the place of a root whose text lies somewhere in some bytes."""
    data = np.frombuffer(b"--" + salt.encode() + b"--" + lora.encode(), np.uint8)
    at = 2 + len(salt) + 2
    return in_bytes(roots, data, at, len(lora), 2, len(salt))
