"""Slots stand for what the claims say, and a rank's lives are counted."""

from collections.abc import Sequence

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.indexer.shared.inside import check_places
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.shared.layout.record import Claim, SpotOf
from warmpath.indexer.shared.query.lookup import Places

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
