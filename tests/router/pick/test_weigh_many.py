"""Very many ranks are weighed by columns: as a few are, to the last bit and the last draw."""

from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.load.engine_metrics import Observed
from router.load.other_routers import rank_told
from router.peers.received import Told
from router.pick import weigh
from router.pick.options import Option
from router.pick.weigh import Choice
from tests.examples import examples
from tests.router.pick.picker_parts import KeyedPrompt, Parts

PODS = 6

STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("warm"),
            st.integers(0, PODS - 1),
            st.integers(1, 100),
            st.sampled_from(["gpu", "cpu", "remote"]),
            st.sampled_from(["exact", "degraded", "cold"]),
        ),
        st.tuples(st.just("pick"), st.integers(1, 100), st.sampled_from(["", "s", "t"])),
        st.tuples(st.just("first token"), st.integers(0, 9)),
        st.tuples(st.just("end"), st.integers(0, 9), st.sampled_from(["finished", "failed"])),
        st.tuples(
            st.just("observe"), st.integers(0, PODS - 1), st.integers(0, 40), st.integers(0, 40)
        ),
        st.tuples(st.just("wait"), st.sampled_from([0.01, 0.3, 2.0, 9.0])),
    ),
    max_size=40,
)


def fleet(steps: list[tuple[Any, ...]], **options: object) -> Parts:
    """Return a fleet to which this has happened."""
    parts = Parts(PODS, **options)
    picked: list[str] = []
    for name, *given_ in steps:
        if name == "warm":
            parts.warm(*given_)
        elif name == "pick":
            blocks, session = given_
            picked.append(
                parts.choose(prompt=KeyedPrompt(range(1, blocks + 1)), session=session)[0]
            )
        elif name == "first token" and given_[0] < len(picked):
            parts.picker.first_token(picked[given_[0]], parts.now)
        elif name == "end" and given_[0] < len(picked):
            parts.picker.ended(picked[given_[0]], given_[1], parts.now)
        elif name == "observe":
            pod, running, waiting = given_
            parts.loads.observe(f"pod-{pod}", 0, Observed(running, waiting, 0.5, parts.now))
        elif name == "wait":
            parts.now += given_[0]
    return parts


def weighed(parts: Parts, many: int, draws: object, **fields: object) -> Choice:
    """Weigh with columns from so many ranks on, with the same draws as before."""
    rng: Random = parts.picker._weigher._rng
    rng.setstate(draws)  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weigh, "MANY", many)
        return parts.weigh(**fields)


def told(one: Option) -> object:
    """Return all that is known of an option."""
    match = one.match
    held = match.spans, match.arriving_tokens, match.assumed_tokens, match.matched_tokens
    return one._replace(match=held)  # type: ignore[arg-type]


def check_alike(parts: Parts, **fields: object) -> None:
    rng: Random = parts.picker._weigher._rng
    draws = rng.getstate()
    few = weighed(parts, 1000, draws, **fields)
    after = rng.getstate()
    many = weighed(parts, 1, draws, **fields)
    assert rng.getstate() == after
    assert type(few.options) is not type(many.options)
    assert [*map(told, many.options)] == [*map(told, few.options)]
    assert [*map(told, many.options[:2])] == [*map(told, few.options[:2])]
    assert told(many.options.warmest()) == told(few.options.warmest())
    assert (many.source and told(many.source)) == (few.source and told(few.source))
    assert many.reason == few.reason
    for name in ("policy", "prompt_tokens", "utilisation", "busy", "is_beside"):
        assert getattr(many, name) == getattr(few, name), name


@settings(max_examples=examples(150))
@given(
    steps=STEPS,
    blocks=st.integers(1, 100),
    session=st.sampled_from(["", "s"]),
    beside=st.sampled_from([None, ("pod-3", 0), ("pod-gone", 0)]),
    tuning=st.sampled_from(
        [{}, {"g": 0.0}, {"g": 0.7, "load-slack": 0.0, "load-margin": 1.0}, {"sharing": 1.0}]
    ),
    tiers=st.sampled_from([frozenset[str](), frozenset({"remote"})]),
    unread=st.sampled_from([0, 500]),
)
def test_many_ranks_are_weighed_as_a_few_are(
    steps: list[tuple[Any, ...]],
    blocks: int,
    session: str,
    beside: tuple[str, int] | None,
    tuning: dict[str, float],
    tiers: frozenset[str],
    unread: int,
) -> None:
    parts = fleet(steps, options=tuning, shared_tiers=tiers)
    prompt = KeyedPrompt(range(1, blocks + 1))
    check_alike(parts, prompt=prompt, session=session, beside=beside, unread=unread)


def test_a_fleet_whose_speeds_differ_is_weighed_alike() -> None:
    parts = Parts(PODS)
    for turn in range(60 * PODS):
        name, choice = parts.choose(prompt=KeyedPrompt((), 4000))
        best = choice.options[0]
        slow = 1 + int(best.pod.id[-1]) / 2
        parts.now += slow * best.candidate.prefill / best.calibration
        parts.picker.first_token(name, parts.now)
        parts.picker.ended(name, "finished", parts.now)
        if turn % 40 == 39:
            check_alike(parts)
    factors = {one.calibration for one in parts.weigh().options}
    assert len(factors) > 1


def test_loads_that_other_routers_tell_are_weighed_alike() -> None:
    parts, other = Parts(PODS, router="a" * 12), Parts(PODS)
    for _ in range(9):
        other.choose()
        parts.choose()
    ranks = [
        rank_told(*name, book, other.now)
        for name, book in other.bookings.ranks().items()
        if book.in_flight
    ]
    assert parts.peers is not None
    parts.peers.told.hear("b" * 12, msgspec.msgpack.encode(Told(1, 9, ranks)), parts.now)
    parts.loads.heard(parts.now)
    parts.loads.observe("pod-1", 0, Observed(9, 2, 0.5, parts.now))
    parts.now += 0.1
    check_alike(parts)
