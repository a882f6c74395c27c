"""Ranks' forms that are kept are those that the ranks have."""

from hypothesis import given
from hypothesis import strategies as st

from tests.conformance.reference_index import ReferenceIndex
from tests.router.pick.weighed import FakeRank
from warmpath.indexer.engines.cache_groups import Group, Layout
from warmpath.indexer.ranks import Ingest
from warmpath.router.match.forms import KeptForms

INGEST = Ingest(ReferenceIndex(), hash_seed="", pending_bytes=1, stale_after=1.0, clock=lambda: 0.0)
LAYOUTS = st.sampled_from(
    [
        Layout(),
        Layout({0: Group("full_attention", 16)}),
        Layout({0: Group("full_attention", 16)}, lookahead=True),
        Layout({0: Group("full_attention", 64)}),
        Layout({0: Group("sliding_window", 16, 128)}),
    ]
)


def test_a_rank_whose_first_event_tells_of_its_blocks_has_their_form_from_then_on() -> None:
    kept, rank = KeptForms(INGEST, None), FakeRank("p", block_size=0)
    ranks = [rank, FakeRank("q")]
    assert list(kept.of(ranks).unknown) == [rank]  # type: ignore[arg-type]
    rank.layout = Layout({0: Group("", 64)})
    forms = kept.of(ranks)  # type: ignore[arg-type]
    assert not forms.unknown
    assert {form: list(alike) for form, alike in forms.known.items()} == {
        (64, False): [rank],
        (16, False): [ranks[1]],
    }


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 3), unique=True), st.integers(0, 3), LAYOUTS),
        max_size=8,
    )
)
def test_whatever_changed_forms_are_those_made_anew(
    steps: list[tuple[list[int], int, Layout]],
) -> None:
    kept, fleet = KeptForms(INGEST, None), [FakeRank("p", number) for number in range(4)]
    for chosen, changed, layout in steps:
        fleet[changed].layout = layout
        ranks = [fleet[number] for number in chosen]
        assert kept.of(ranks) == KeptForms(INGEST, None).of(ranks)  # type: ignore[arg-type]
