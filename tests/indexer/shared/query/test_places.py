"""Slots stand for what the claims say, and a rank's lives are counted."""

from collections.abc import Sequence

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.indexer.shared.inside import check_places
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.index.slot import Place
from warmpath.indexer.shared.layout.record import Claim, SpotOf
from warmpath.indexer.shared.query.lookup import Places

GPU = SpotOf(0, Tier.GPU, 0)
CPU = SpotOf(0, Tier.CPU, 0)
SECOND = SpotOf(1, Tier.GPU, 0)


def claim_of(places: Sequence[SpotOf | None], base: int = 5) -> Claim:
    return Claim("o", base, list(places), "k", "m", 2)


def test_a_slot_stands_for_what_its_claim_says() -> None:
    places = Places()
    claim = claim_of([GPU, None, SECOND])
    places.take("p", claim)
    assert places.place(claim.slot(0)) == Place("p", 0, Tier.GPU, 0, 0)
    assert places.place(claim.slot(1)) is None
    assert places.place(claim.slot(2)) == Place("p", 1, Tier.GPU, 0, 0)
    assert places.place(claim_of([GPU], base=6).slot(0)) is None


def test_a_tier_more_is_no_new_life() -> None:
    places = Places()
    places.take("p", claim_of([GPU]))
    places.take("p", claim_of([GPU, CPU]))
    assert places.life("p", 0) == 0
    assert len(places._places) == 2


def test_a_rank_that_was_emptied_has_a_new_life_and_the_other_has_not() -> None:
    places = Places()
    places.take("p", claim_of([GPU, SECOND]))
    places.take("p", claim_of([None, SECOND]))
    assert (places.life("p", 0), places.life("p", 1)) == (1, 0)
    places.take("p", claim_of([None, SECOND, GPU]))
    assert (places.life("p", 0), places.life("p", 1)) == (1, 0)


def test_a_claim_that_begins_anew_begins_every_ranks_life_anew() -> None:
    places = Places()
    places.take("p", claim_of([GPU]))
    places.take("p", claim_of([GPU], base=6))
    assert (places.life("p", 0), places.life("p", 1)) == (1, 1)
    assert places.place(claim_of([GPU]).slot(0)) is None


def test_a_pod_whose_lease_is_over_holds_nothing_and_its_next_claim_is_another_life() -> None:
    places = Places()
    places.take("p", claim_of([GPU]))
    places.take("p", None)
    assert (len(places._places), places.life("p", 0)) == (0, 0)
    places.take("p", claim_of([GPU], base=6))
    assert (len(places._places), places.life("p", 0)) == (1, 1)


def test_a_claim_that_is_there_again_as_it_was_is_the_same_life() -> None:
    places = Places()
    claim = claim_of([GPU])
    places.take("p", claim)
    places.take("p", None)
    places.take("p", claim)
    assert (len(places._places), places.life("p", 0)) == (1, 0)


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
