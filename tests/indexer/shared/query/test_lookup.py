"""Look-ups without a server: any content against sets; what slots stand for, and the lives of ranks."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.indexer.segment_values import encode, pack
from tests.indexer.shared.inside import check_places
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.index.contract import Stretch
from warmpath.indexer.keys.segment import SEGMENT
from warmpath.indexer.keys.segment_value import BadSegmentError
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.layout.record import Claim, SpotOf
from warmpath.indexer.shared.query.lookup import Keys, Places, rounds, stretches

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


def found(
    keys: Sequence[int] | Keys, server: dict[str, dict[bytes, bytes]]
) -> tuple[list[Stretch], list[Exception]]:
    """Return what is found on a server in two rounds at most."""
    values: dict[bytes, bytes | None] = {}
    trips = 0
    for parts in rounds(NAMES, keys, values):
        trips += 1
        for bucket, fields in parts.items():
            values |= {one: server.get(NAMES.bucket(bucket), {}).get(one) for one in fields}
    assert trips <= 2
    return stretches(np.asarray(keys, "<u8"), values)


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
    held = [content[keys[at - at % SEGMENT]].get(key, set()) for at, key in enumerate(keys)]
    parts, failed = found(keys, stored(content, spilled))
    assert sorted(parts) == expected(held)
    assert failed == []


def test_what_was_not_read_leaves_the_rest() -> None:
    keys = list(range(100, 100 + 3 * SEGMENT))
    first, last = (encode(pack({keys[at]: {5}})) for at in (0, 128))
    values = {word(keys[0]): first, word(keys[128]): last}
    assert len(list(rounds(NAMES, keys, values))) == 1
    of_all = stretches(np.asarray(keys, "<u8"), values)
    assert of_all == ([Stretch(5, 0, 1), Stretch(5, 128, 129)], [])


@given(st.binary(min_size=1, max_size=120), st.integers(0, 2))
def test_a_bad_value_says_that_nobody_holds_its_blocks(junk: bytes, kind: int) -> None:
    keys = list(range(100, 200))
    good = encode(pack({key: {5} for key in keys[64:]}))
    values = {word(100): bytes([kind, 0, 1, 0]) + junk, word(164): good}
    for parts in rounds(NAMES, keys, values):
        values |= {one: junk for of in parts.values() for one in of if one not in values}
    held, failed = stretches(np.asarray(keys, "<u8"), values)
    assert Stretch(5, 64, 100) in held
    for error in failed:
        assert isinstance(error, BadSegmentError)


def test_a_value_of_no_bytes_is_bad_and_not_one_that_is_missing() -> None:
    parts, [problem] = found([1], {NAMES.bucket(NAMES.bucket_of(1)): {word(1): b""}})
    assert not parts
    assert isinstance(problem, BadSegmentError)


def test_keys_may_be_an_array() -> None:
    keys = np.array([2**63 + 1, 2], np.uint64)
    server = stored({2**63 + 1: {2**63 + 1: {1}, 2: {1}}})
    assert found(keys, server)[0] == [Stretch(1, 0, 2)]


GPU = SpotOf(0, Tier.GPU, 0)
CPU = SpotOf(0, Tier.CPU, 0)
SECOND = SpotOf(1, Tier.GPU, 0)


def claim_of(places: Sequence[SpotOf | None], base: int = 5) -> Claim:
    return Claim("o", base, list(places), "k", "m", 2)


@pytest.mark.parametrize(
    ("claims", "lives", "count"),
    [
        pytest.param([claim_of([GPU]), claim_of([GPU, CPU])], (0, 0), 2, id="a tier more"),
        pytest.param([claim_of([GPU, SECOND]), claim_of([None, SECOND])], (1, 0), 1, id="emptied"),
        pytest.param([claim_of([GPU, SECOND]), claim_of([None, SECOND]), claim_of([None, SECOND, GPU])], (1, 0), 2, id="filled again"),
        pytest.param([claim_of([GPU]), claim_of([GPU], base=6)], (1, 1), 1, id="begun anew"),
        pytest.param([claim_of([GPU]), None], (0, 0), 0, id="the lease is over"),
        pytest.param([claim_of([GPU]), None, claim_of([GPU], base=6)], (1, 1), 1, id="another after the lease"),
        pytest.param([claim_of([GPU]), None, claim_of([GPU])], (0, 0), 1, id="there again as it was"),
    ],
)  # fmt: skip
def test_what_is_another_life_of_which_rank(
    claims: list[Claim | None], lives: tuple[int, int], count: int
) -> None:
    places = Places()
    for claim in claims:
        places.take("p", claim)
    assert (places.life("p", 0), places.life("p", 1)) == lives
    assert len(places._places) == count


PLACES = st.lists(st.sampled_from([None, GPU, CPU, SECOND]), max_size=4)


class PlacesMachine(RuleBasedStateMachine):
    """Whatever is said of pods: what slots stand for is what was said last."""

    def __init__(self) -> None:
        super().__init__()
        self.places = Places()
        self.said: dict[str, Claim] = {}
        self.seen: tuple[int, list[int]] = 0, []

    @rule(pod=st.sampled_from("ab"), base=st.integers(0, 2), spots=PLACES)
    def take(self, pod: str, base: int, spots: list[SpotOf | None]) -> None:
        # No two pods ever have one base.
        self.said[pod] = claim_of(spots, base=2 * base + (pod == "b"))
        self.places.take(pod, self.said[pod])

    @rule(pod=st.sampled_from("ab"))
    def go(self, pod: str) -> None:
        self.said.pop(pod, None)
        self.places.take(pod, None)

    @rule(pod=st.sampled_from("ab"))
    def forget(self, pod: str) -> None:
        self.said.pop(pod, None)
        self.places.forget(pod)
        assert self.places.life(pod, 0) == 0

    @invariant()
    def no_life_changes_uncounted(self) -> None:
        changes = self.places.life_changes
        lives = [self.places.life(pod, rank) for pod in "ab" for rank in range(2)]
        assert changes > self.seen[0] or lives == self.seen[1] or not self.seen[1]
        self.seen = changes, lives

    @invariant()
    def holds(self) -> None:
        check_places(self.places)
        for pod, claim in self.said.items():
            for number, spot in enumerate(claim.places):
                place = self.places.place(claim.slot(number))
                if spot is None:
                    assert place is None
                else:
                    assert place is not None
                    assert (place.pod, place.rank, place.tier) == (pod, spot.rank, spot.tier)
        living = [spot for claim in self.said.values() for spot in claim.places if spot]
        assert len(self.places._places) == len(living)


TestPlaces = PlacesMachine.TestCase
