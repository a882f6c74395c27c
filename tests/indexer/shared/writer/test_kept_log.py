"""A writer's log keeps its newest entries within two bounds."""

from hypothesis import given
from hypothesis import strategies as st

from tests.indexer.shared.inside import check_log
from warmpath.indexer.shared.writer.tenure import KeptLog


@given(st.lists(st.integers(0, 50), min_size=1))
def test_no_more_entries_and_bytes_are_kept_than_may_be_unless_the_last_alone_is_larger(
    sizes: list[int],
) -> None:
    log = KeptLog(entries=4, max_bytes=60)
    for last, size in enumerate(sizes, 1):
        first = log.add(last, size)
        kept = sizes[first - 1 : last]
        assert 1 <= len(kept) <= 4
        assert sum(kept) <= 60 or len(kept) == 1
        assert log.bytes == sum(kept)
        # Nothing is let go that could have been kept.
        if first > 1:
            assert len(kept) == 4 or sum(sizes[first - 2 : last]) > 60
        check_log(log)
