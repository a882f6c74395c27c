"""The bytes that ranks take outside the arrays."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tests.indexer.consistent import check
from warmpath.indexer.compiled.outside import Outside


class Owner:
    def __init__(self) -> None:
        self.bytes = 0
        self.asked = 0

    def nbytes(self) -> int:
        self.asked += 1
        return self.bytes


@given(
    st.lists(st.tuples(st.sampled_from(["work", "shrink", "remove", "count"]), st.integers(0, 4)))
)
def test_the_sum_is_that_of_all_owners(steps: list[tuple[str, int]]) -> None:
    outside, owners = Outside(), [Owner() for _ in range(5)]
    for owner in owners:
        outside.add(owner, owner.nbytes)
    there = set(owners)
    for number, (step, of) in enumerate(steps):
        owner = owners[of]
        if step == "remove" and owner in there:
            outside.remove(owner)
            there.remove(owner)
        elif step == "work":
            outside.changes(owner)
            owner.bytes += number
            outside.count()
            owner.bytes += 1  # still at work
        elif step == "shrink" and owner in there:
            outside.changed(owner)
            owner.bytes //= 2
        assert outside.count() == outside.whole() == sum(one.bytes for one in there)
    check(outside)


def test_only_owners_that_may_have_changed_are_asked() -> None:
    outside, owners = Outside(), [Owner() for _ in range(100)]
    for owner in owners:
        outside.add(owner, owner.nbytes)
    outside.count()
    before = Counter({owner: owner.asked for owner in owners})
    outside.changes(owners[3])
    outside.count()
    outside.count()
    asked = [number for number, one in enumerate(owners) if one.asked > before[one]]
    assert asked == [3, 99]  # the last one was still at work
