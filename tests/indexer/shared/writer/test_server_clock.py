"""What is known of the server's clock, against one that only the test sees."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from warmpath.indexer.shared.writer.server_clock import DRIFT, ServerClock

WAY = st.floats(0, 2)


@given(
    st.lists(st.tuples(st.floats(0, 30), WAY, WAY, st.booleans()), max_size=30),
    st.sampled_from([1.0, 1.0001, 0.9999, 1.1, 0.9]),
)
@settings(max_examples=examples(500))
def test_it_shows_what_is_said_or_more_and_hardly_more_after_a_quick_reply(
    calls: list[tuple[float, float, float, bool]], rate: float
) -> None:
    now = 0.0
    clock = ServerClock(lambda: now * rate)

    def shown() -> float:
        return 1e6 + now * 1000

    for pause, way, back, is_lost in calls:
        now += pause
        sent = clock.at_least()
        assert sent is None or sent <= shown()
        now += way
        said = int(shown())
        now += back
        if not is_lost:
            clock.heard(said, sent)
            now += 10
            least = clock.at_least()
            assert least is not None
            assert least >= shown() - 1000 * back - 2 - 10_000 * (1 - (1 - DRIFT) * rate)


def test_a_reply_that_had_to_wait_does_not_replace_one_that_was_read_at_once() -> None:
    now = 0.0
    clock = ServerClock(lambda: now)
    clock.heard(5000, None)
    now = 1.0
    sent = clock.at_least()
    now = 3.0
    clock.heard(6000, sent)
    assert clock.at_least() == 5000 + 3000 * (1 - DRIFT)


def test_a_clock_that_was_set_is_followed() -> None:
    now = 0.0
    clock = ServerClock(lambda: now)
    clock.heard(5_000_000, None)
    now = 1.0
    clock.heard(1_401_000, clock.at_least())
    assert clock.at_least() == 1_401_000
    now = 2.0
    clock.heard(9_000_000, clock.at_least())
    assert clock.at_least() == 9_000_000
