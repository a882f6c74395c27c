"""A rank's working set is what its sessions will ask for again, and fades."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.router.pick.picker_parts import BLOCK, Parts
from warmpath.indexer.index.slot import RankName
from warmpath.indexer.keys.key import pack_words
from warmpath.router.pick.eligible import Field, field_of
from warmpath.router.pick.working_set import GONE, LIFE_SECONDS, MOST_PROMPTS, ONCE, WorkingSets

A, B = RankName("pod-0", 0), RankName("pod-1", 0)
ROOM = 16_000


def keys(session: int, blocks: int) -> bytes:
    return pack_words([1000 * session + at for at in range(1, blocks + 1)])


def field_with(*rooms: int) -> Field:
    """Return the ranks A and B, whose caches have room for so many tokens; 0: it is not known."""
    pods = Parts(pods=2).pods
    sized = zip(pods, rooms, strict=True)
    return field_of([replace(pod, blocks=room // BLOCK) for pod, room in sized])


def free(sets: WorkingSets, now: float, *rooms: int) -> list[float]:
    found: list[float] = sets.free(field_with(*rooms or (ROOM, ROOM)), now)[0].tolist()
    return found


def test_a_longer_prompt_takes_the_place_of_the_one_that_it_repeats() -> None:
    sets = WorkingSets()
    sets.see(A, keys(1, 10), 160, 0.0)
    assert free(sets, 0.0) == pytest.approx([ROOM - ONCE * 160, ROOM])
    sets.see(A, keys(1, 30), 480, 0.0)
    assert free(sets, 0.0) == pytest.approx([ROOM - 480, ROOM])
    sets.see(A, keys(2, 5), 80, 0.0)
    sets.see(B, keys(1, 40), 640, 0.0)
    assert free(sets, 0.0) == pytest.approx([ROOM - 480 - ONCE * 80, ROOM - ONCE * 640])


def test_a_prompt_fades_and_ends() -> None:
    sets = WorkingSets()
    sets.see(A, keys(1, 10), 1000, 5.0)
    assert free(sets, 5.0 + LIFE_SECONDS)[0] == pytest.approx(ROOM - ONCE * 1000 / math.e)
    sets.see(A, keys(2, 10), 1000, 6.0 + GONE * LIFE_SECONDS)
    assert free(sets, 6.0 + GONE * LIFE_SECONDS)[0] == pytest.approx(ROOM - ONCE * 1000)


def test_a_cache_of_unknown_size_has_room_for_everything() -> None:
    sets = WorkingSets()
    sets.see(A, keys(1, 10), 1000, 0.0)
    assert free(sets, 0.0, 0, ROOM) == [math.inf, ROOM]


def test_a_cache_holds_a_share_of_a_working_set_that_is_larger() -> None:
    sets = WorkingSets()
    sets.see(A, keys(1, 10), 4 * ROOM, 0.0)
    sets.see(A, keys(1, 11), 4 * ROOM, 0.0)
    assert sets.free(field_with(ROOM, ROOM), 0.0)[1].tolist() == pytest.approx([0.25, 1.0])


def test_a_forgotten_rank_has_no_working_set() -> None:
    sets = WorkingSets()
    sets.see(A, keys(1, 10), 1000, 0.0)
    sets.forget("pod-0", 0)
    assert free(sets, 0.0) == [ROOM, ROOM]


SEEN = st.tuples(
    st.sampled_from([A, B]),
    st.integers(0, 3),
    st.integers(0, 6),
    st.floats(0, 2 * GONE * LIFE_SECONDS),
)


@given(st.lists(SEEN, max_size=40))
def test_sums_are_those_of_the_prompts_that_none_repeats(
    seen: list[tuple[RankName, int, int, float]],
) -> None:
    sets, now, there = WorkingSets(), 0.0, field_with(ROOM, ROOM)
    kept: dict[RankName, list[tuple[int, int, float, float]]] = {A: [], B: []}
    for name, session, blocks, later in seen:
        now += later
        sets.see(name, keys(session, blocks), 100 * blocks, now)
        if blocks:
            repeated = [one for one in kept[name] if one[0] == session and one[1] <= blocks]
            kept[name] = [
                one
                for one in kept[name]
                if one not in repeated and now - one[3] < GONE * LIFE_SECONDS
            ]
            kept[name].append((session, blocks, 100 * blocks * (1.0 if repeated else ONCE), now))
        wanted = [
            sum(weight * math.exp(-(now - at) / LIFE_SECONDS) for *_, weight, at in kept[one])
            for one in (A, B)
        ]
        assert sets.free(there, now)[0].tolist() == pytest.approx(
            [ROOM - one for one in wanted], rel=1e-6
        )


def test_the_prompts_that_are_kept_are_bounded() -> None:
    sets = WorkingSets()
    for session in range(2 * MOST_PROMPTS):
        sets.see(A, keys(session, 1), 10, 0.0)
    assert free(sets, 0.0)[0] == pytest.approx(ROOM - ONCE * 10 * MOST_PROMPTS)
