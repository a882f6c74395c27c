"""Look-ups without a server: any content, as a dict of fields, against sets."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpath.indexer.index.contract import Stretch
from warmpath.indexer.keys.segment import SEGMENT
from warmpath.indexer.keys.segment_value import BadSegmentError, encode, pack
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.query.lookup import LookUp, stretches
from warmpath.indexer.shared.redis.command import CommandRefusedError, Reply, UnreachableError

NAMES = KeyNames("t", buckets=4)
Content = dict[int, dict[int, set[int]]]
"""By segment and key: slots."""


def word(number: int) -> bytes:
    return number.to_bytes(8, "little")


def stored(content: Content, spilled: Sequence[int] = ()) -> dict[str, dict[bytes, bytes]]:
    """Return content as the hashes of a server."""
    found: dict[str, dict[bytes, bytes]] = {}
    for segment, held in content.items():
        fields = found.setdefault(NAMES.bucket(NAMES.bucket_of(segment)), {})
        if segment in spilled:
            fields[word(segment)] = b"\x02\0\0\0" + len(held).to_bytes(4, "little")
            for key, slots in held.items():
                fields[word(segment) + word(key)] = encode(pack({key: slots}))
        elif held:
            fields[word(segment)] = encode(pack(held))
    return found


def answered(look_up: LookUp, server: dict[str, dict[bytes, bytes]]) -> int:
    """Answer until nothing more is asked; return the number of rounds."""
    rounds = 0
    commands = look_up.commands()
    while commands:
        rounds += 1
        replies: list[Reply] = []
        buckets = [command.words[1] for command in commands]
        assert len(set(buckets)) == len(buckets), "one command a bucket"
        for command in commands:
            name, bucket, *fields = command.words
            assert name == "HMGET"
            replies.append([server.get(str(bucket), {}).get(bytes(field)) for field in fields])  # type: ignore[arg-type]
        look_up.feed(replies)
        commands = look_up.more()
    return rounds


def found(look_up: LookUp, keys: Sequence[int]) -> tuple[list[Stretch], list[Exception]]:
    return stretches(np.asarray(keys, "<u8"), look_up.values)


def expected(held: list[set[int]]) -> list[Stretch]:
    found = []
    for slot in set().union(*held):
        start = None
        for at, slots in enumerate([*held, set()]):
            if slot in slots and start is None:
                start = at
            elif slot not in slots and start is not None:
                found.append(Stretch(slot, start, at))
                start = None
    return sorted(found)


@st.composite
def prompts(draw: st.DrawFn) -> tuple[list[int], Content, list[int]]:
    """Return a prompt's keys, content with branches, and which segments are spilled."""
    blocks = draw(st.integers(0, 200))
    keys = [(at + 1) * 1_000_003 for at in range(blocks)]
    content: Content = {}
    for start in range(0, blocks, SEGMENT):
        segment = keys[start : start + SEGMENT]
        held: dict[int, set[int]] = {}
        for slot in draw(st.sets(st.integers(2**62, 2**62 + 20), max_size=12)):
            for key in segment[: draw(st.integers(0, len(segment)))]:
                held.setdefault(key, set()).add(slot)
        for number in range(draw(st.integers(0, 3))):
            held[7 * number + 1] = {2**62}
        for key in draw(st.lists(st.sampled_from(segment), max_size=3)):
            held.pop(key, None)
        if draw(st.booleans()):
            order = draw(st.permutations(sorted(held)))
            held = {key: held[key] for key in order}
        content[keys[start]] = held
    return keys, content, draw(st.lists(st.sampled_from(keys[::SEGMENT]))) if keys else []


@given(prompts())
def test_a_prompt_is_found_wherever_it_lies(case: tuple[list[int], Content, list[int]]) -> None:
    keys, content, spilled = case
    look_up = LookUp(NAMES, keys)
    rounds = answered(look_up, stored(content, spilled))
    assert rounds <= 2
    held = [content[keys[at - at % SEGMENT]].get(key, set()) for at, key in enumerate(keys)]
    parts, failed = found(look_up, keys)
    assert sorted(parts) == expected(held)
    assert failed == []


@pytest.mark.parametrize("error", [CommandRefusedError("no"), UnreachableError("gone")])
def test_a_bucket_that_does_not_answer_leaves_the_others(error: Exception) -> None:
    keys = list(range(100, 100 + 3 * SEGMENT))
    content: Content = {
        keys[start]: {key: {5} for key in keys[start : start + SEGMENT]}
        for start in range(0, len(keys), SEGMENT)
    }
    names = KeyNames("t", buckets=3 * SEGMENT)
    look_up = LookUp(names, keys)
    fields = [word(segment) for segment in content]
    look_up.commands()
    first, last = (encode(pack(content[keys[at]])) for at in (0, 128))
    look_up.feed([[first, b"1.2", b"3"], error, [last, None, None]])
    assert not look_up.more()
    assert found(look_up, keys) == ([Stretch(5, 0, 64), Stretch(5, 128, 192)], [])
    assert look_up.values[fields[1]] is None
    assert [*look_up.lives.values()] == [(b"1.2", b"3"), (None, None)], (
        "of the second nothing is known"
    )


@pytest.mark.parametrize("reply", [None, b"what", [], [b"\x01\0\x01\0", None, None, None], 3])
def test_a_reply_that_is_none_is_an_error_of_its_bucket(reply: Reply) -> None:
    look_up = LookUp(NAMES, [1, 2, 3])
    look_up.commands()
    look_up.feed([reply])
    assert look_up.more() == []
    assert found(look_up, [1, 2, 3]) == ([], [])
    assert look_up.lives == {}


@given(st.binary(min_size=1, max_size=120), st.integers(0, 2))
def test_a_bad_value_says_that_nobody_holds_its_blocks(junk: bytes, kind: int) -> None:
    keys = list(range(100, 200))
    look_up = LookUp(KeyNames("t", buckets=1), keys)
    look_up.commands()
    good = encode(pack({key: {5} for key in keys[64:]}))
    look_up.feed([[bytes([kind, 0, 1, 0]) + junk, good, b"1.2", b"3"]])
    for command in look_up.more():
        look_up.feed([[*[junk] * (len(command.words) - 4), b"1.2", b"3"]])
    parts, failed = found(look_up, keys)
    assert Stretch(5, 64, 100) in parts
    for error in failed:
        assert isinstance(error, BadSegmentError)


def test_a_value_of_no_bytes_is_bad_and_not_one_that_is_missing() -> None:
    look_up = LookUp(NAMES, [1])
    answered(look_up, {NAMES.bucket(NAMES.bucket_of(1)): {word(1): b""}})
    parts, [problem] = found(look_up, [1])
    assert not parts
    assert isinstance(problem, BadSegmentError)


def test_keys_may_be_an_array() -> None:
    keys = np.array([2**63 + 1, 2], np.uint64)
    look_up = LookUp(NAMES, keys)
    answered(look_up, stored({2**63 + 1: {2**63 + 1: {1}, 2: {1}}}))
    assert found(look_up, keys)[0] == [Stretch(1, 0, 2)]
