"""The calls on their way are counted by connection, and the room for them is shared fairly."""

from collections import Counter
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from warmpath.h2grpc.metadata import address_of
from warmpath.router.admission.coming import LATE_SECONDS, Coming

CONNECTIONS = ("a:1", "a:2", "a:3", "b:1", "unix:")


@given(
    st.lists(
        st.tuples(st.sampled_from(CONNECTIONS), st.sampled_from(["asks", "comes", "came", "turn"]))
    ),
    st.floats(0, 100),
    st.floats(0, 1, exclude_max=True),
)
def test_counts_are_those_of_a_simple_list_and_nobody_gets_more_than_there_is(
    steps: list[tuple[str, str]], most: float, chance: float
) -> None:
    coming = Coming(lambda: chance)
    coming.most = most
    now = 0.0
    here: list[tuple[str, float, Callable[[], None]]] = []
    for connection, step in steps:
        if step == "asks":
            coming.asks(connection)
        elif step == "turn":
            now += LATE_SECONDS / 2
            coming.turn(now)
            here = [one for one in here if one[1] > now - LATE_SECONDS]
        elif step == "comes" and coming.room(connection) > 0:
            here.append((connection, now, coming.comes(connection, now)))
        elif step == "came" and (found := [one for one in here if one[0] == connection]):
            for _ in range(2):
                found[0][2]()
            here.remove(found[0])
        assert len(coming) == len(here) <= most + 1


@given(st.sets(st.sampled_from(CONNECTIONS), min_size=1), st.integers(1, 60))
def test_all_the_room_is_shared_by_those_that_ask_however_they_are_ordered(
    asking: set[str], most: int
) -> None:
    coming = Coming(lambda: 0.0)
    coming.most = most
    for connection in asking:
        coming.asks(connection)
    coming.turn(0.0)
    rooms = {connection: coming.room(connection) for connection in asking}
    assert most <= sum(rooms.values()) < most + len(asking) + 1
    counts = Counter(map(address_of, asking))
    for connection, room in rooms.items():
        assert abs(room - most / len(counts) / counts[address_of(connection)]) <= 1


def test_a_connection_that_no_longer_asks_leaves_its_part_to_others() -> None:
    coming = Coming(lambda: 0.0)
    coming.most = 10.0
    coming.asks("a:1")
    coming.asks("a:2")
    coming.turn(0.0)
    assert coming.room("a:1") == 5
    coming.asks("a:1")
    coming.turn(0.0)
    assert coming.room("a:1") == 5, "it is not always read in every turn"
    coming.asks("a:1")
    coming.turn(0.0)
    assert coming.room("a:1") == 10


def test_a_call_whose_message_does_not_come_soon_takes_room_from_nobody() -> None:
    coming = Coming(lambda: 0.0)
    coming.most = 4.0
    for _ in range(4):
        coming.comes("a:1", 1.0)
    assert coming.room("b:1") == 0
    coming.forget_late(1.0 + LATE_SECONDS)
    assert coming.room("b:1") == 4
