"""The group window: siblings are placed together, nobody waits twice, and nothing is left behind."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.router.consistent import check
from tests.router.pick.picker_parts import BLOCK, PROMPT, KeyedPrompt, Parts, first
from warmpath.indexer.keys.key import pack_tokens
from warmpath.router.diagnosis.decisions import Decisions
from warmpath.router.pick.eligible import NoPodError
from warmpath.router.pick.group_window import GroupWindow
from warmpath.router.pick.pick import Pick
from warmpath.router.pick.weigh import Ask, Choice
from warmpath.router.pods.table import Pod
from warmpath.router.prompt.token_prompt import TokenPrompt
from warmpath.scorer.policy import UnknownPolicyError

SECONDS = 0.05
SPREAD = "least-load"
"""A policy by which requests that are placed alone go to one pod after the other."""
OTHER = KeyedPrompt(range(1001, 1101))
SHARED = KeyedPrompt(range(1, 101))
"""The same keys as PROMPT's, yet not equal to it."""


@dataclass
class Timer:
    """One that the stand rings."""

    at: float
    call: Callable[[], None]
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True


Chosen = tuple[Pick, Choice]


class Stand:
    """A window over a picker, whose time passes when a test says so."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *,
        seconds: float = SECONDS,
        size: int = 4,
        pods: int = 3,
    ) -> None:
        self.parts = Parts(pods=pods)
        self.window = GroupWindow(
            self.parts.picker, seconds=seconds, size=size, clock=lambda: self.parts.now
        )
        self._timers: list[Timer] = []
        monkeypatch.setattr(asyncio.get_running_loop(), "call_later", self._later)

    def _later(self, seconds: float, call: Callable[..., None], *args: Any) -> "Timer":
        timer = Timer(self.parts.now + seconds, lambda: call(*args))
        self._timers.append(timer)
        return timer

    @property
    def is_due(self) -> bool:
        """Whether any timer is still to ring."""
        return not all(timer.is_cancelled for timer in self._timers)

    async def pass_time(self, seconds: float) -> None:
        self.parts.now += seconds
        due = [timer for timer in self._timers if timer.at <= self.parts.now]
        self._timers = [timer for timer in self._timers if timer.at > self.parts.now]
        for timer in due:
            if not timer.is_cancelled:
                timer.call()
        await turns()

    def ask(self, prompt: object = PROMPT, **fields: Any) -> "asyncio.Task[Chosen]":
        ask = self.parts.ask(prompt, **fields)  # type: ignore[arg-type]
        return asyncio.create_task(self._answered(ask))

    async def _answered(self, ask: Ask) -> Chosen:
        chosen = await self.window.choose(ask)
        choice = chosen.choice
        self.parts.picker.settle(chosen, self.parts.now)
        return chosen, choice

    def check(self) -> None:
        check(self.window)
        check(self.parts.bookings)


Make = Callable[..., Stand]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    return partial(Stand, monkeypatch)


async def turns() -> None:
    """Let everything happen that waits for no timer."""
    for _ in range(64):
        await asyncio.sleep(0)


def pods_of(*tasks: "asyncio.Task[Chosen]") -> list[str]:
    return [first(task.result()[1]) for task in tasks]


async def test_siblings_are_placed_together_so_many_to_a_rank(make: Make) -> None:
    stand = make(size=4, pods=3)
    samples = [stand.ask(policy=SPREAD) for _ in range(10)]
    await turns()
    assert not any(task.done() for task in samples)
    assert len(stand.parts.bookings) == 0, "nothing is booked while they wait"
    await stand.pass_time(SECONDS)
    pods = pods_of(*samples)
    groups = [set(pods[:4]), set(pods[4:8]), set(pods[8:])]
    assert [len(group) for group in groups] == [1, 1, 1]
    assert len(set.union(*groups)) == 3, "the second group goes where less waits"
    stand.check()


async def test_one_after_the_other_they_would_spread(make: Make) -> None:
    stand = make(seconds=0.0, pods=3)
    samples = [stand.ask(policy=SPREAD) for _ in range(3)]
    await turns()
    assert len(set(pods_of(*samples))) == 3


async def test_each_is_booked_as_a_pick_of_its_own_and_only_the_first_as_cold(make: Make) -> None:
    stand = make(size=5)
    samples = [stand.ask() for _ in range(5)]
    await turns()
    await stand.pass_time(SECONDS)
    assert len({task.result()[0].booking_id for task in samples}) == 5
    assert len(stand.parts.bookings) == 5
    held = [task.result()[1].options[0].match.matched_tokens for task in samples]
    assert held == [0, *[100 * BLOCK] * 4]
    for task in samples:
        assert len(task.result()[1].options) == 3, "each has its fall-backs"
        assert stand.parts.picker.ended(task.result()[0].booking_id, "finished", stand.parts.now)
    assert len(stand.parts.bookings) == 0


async def test_the_ranks_of_a_pod_are_apart(make: Make) -> None:
    stand = make(size=4, pods=0)
    ranks = [stand.parts.ingest.watch("pod-d", number) for number in range(4)]
    for rank in ranks:
        rank.connected()
        stand.parts.tell(rank, "exact")
    pods = [Pod("pod-d", "pod-d:80", "m", tuple(ranks))]
    samples = [stand.ask(pods=pods, policy=SPREAD) for _ in range(4)]
    await turns()
    await stand.pass_time(SECONDS)
    assert len({task.result()[1].options[0].rank.number for task in samples}) == 1


@pytest.mark.parametrize(
    "other",
    [{"prompt": OTHER}, {"policy": "round-robin"}, {"pods": 2}],
    ids=["prompt", "policy", "pods"],
)
async def test_what_differs_is_not_mixed(make: Make, other: dict[str, Any]) -> None:
    stand = make(size=4, pods=3)
    if "pods" in other:
        other = {"pods": stand.parts.pods[: other["pods"]]}
    ours, theirs = stand.ask(policy=SPREAD), stand.ask(**{"policy": SPREAD, **other})
    await turns()
    assert len(stand.window) == 2
    await stand.pass_time(SECONDS)
    assert len(set(pods_of(ours, theirs))) == 2, "each is placed where less waits"


async def test_texts_with_their_keys_kept_are_one_prompt(make: Make) -> None:
    class Memo:
        """Every text that is read has one of its own."""

        def keys(self, root: int) -> bytes:
            del root
            return b""

        def keep(self, root: int, block_size: int, keys: bytes) -> None:
            """Forget them."""

    def prompt(salt: str = "") -> TokenPrompt:
        return TokenPrompt("m", pack_tokens(range(500)), cache_salt=salt, memo=Memo())

    stand = make()
    samples = [stand.ask(prompt()) for _ in range(3)]
    salted = stand.ask(prompt("s"))
    await turns()
    assert len(stand.window) == 2
    await stand.pass_time(SECONDS)
    assert len(set(pods_of(*samples))) == 1
    assert salted.done()


async def test_who_comes_after_the_window_has_closed_opens_another(make: Make) -> None:
    stand = make()
    early = stand.ask()
    await turns()
    await stand.pass_time(SECONDS / 2)
    meanwhile = stand.ask()
    await turns()
    assert not early.done()
    await stand.pass_time(SECONDS / 2)
    assert early.done()
    assert meanwhile.done(), "nobody waits longer than the first"
    late = stand.ask()
    await turns()
    assert not late.done()
    await stand.pass_time(SECONDS)
    assert late.done()


@pytest.mark.parametrize("fields", [{}, {"shadow": True}], ids=["window-0", "shadow"])
async def test_without_a_window_or_in_shadow_nobody_waits(
    make: Make, fields: dict[str, Any]
) -> None:
    stand = make(seconds=SECONDS if fields else 0.0)
    task = stand.ask(**fields)
    await turns()
    assert task.done()
    assert len(stand.window) == 0


async def test_a_caller_that_goes_away_takes_no_booking_and_no_place(make: Make) -> None:
    stand = make(size=2)
    samples = [stand.ask(policy=SPREAD) for _ in range(3)]
    await turns()
    samples[0].cancel()
    await turns()
    stand.check()
    await stand.pass_time(SECONDS)
    assert samples[0].cancelled()
    assert len(stand.parts.bookings) == 2
    assert len(set(pods_of(*samples[1:]))) == 1, "two are one rank's share"


async def test_a_caller_that_goes_away_as_it_is_placed_leaves_no_booking(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand = make()
    gone, stays = stand.ask(), stand.ask()
    await turns()
    monkeypatch.setattr(stand.parts.picker, "reserve", _reserve_and(stand, gone.cancel))
    await stand.pass_time(SECONDS)
    assert gone.cancelled()
    assert stays.done()
    assert len(stand.parts.bookings) == 1
    assert stand.parts.seen == ["withdrawn", "picked"]


def _reserve_and(stand: Stand, then: Callable[[], object]) -> Callable[..., Pick]:
    """Let something happen as soon as the first choice is made and delivered."""
    reserve = stand.parts.picker.reserve

    def reserved(ask: Ask, now: float) -> Pick:
        if len(stand.parts.bookings) == 1:
            then()
        return reserve(ask, now)

    return reserved


async def test_nobody_is_left_when_all_go_away(make: Make) -> None:
    stand = make()
    samples = [stand.ask() for _ in range(3)]
    await turns()
    for task in samples:
        task.cancel()
    await turns()
    assert len(stand.window) == 0
    assert not stand.is_due
    late = stand.ask()
    await turns()
    await stand.pass_time(SECONDS / 2)
    assert not late.done(), "its window begins with it"
    late.cancel()
    await turns()
    assert len(stand.parts.bookings) == 0
    assert len(stand.window) == 0


@pytest.mark.parametrize(
    ("fields", "error"),
    [({"pods": []}, NoPodError), ({"policy": "none-such"}, UnknownPolicyError)],
    ids=["no-pod", "unknown-policy"],
)
async def test_an_error_reaches_every_caller(
    make: Make, fields: dict[str, Any], error: type[Exception]
) -> None:
    stand = make(size=2)
    samples = [stand.ask(**fields) for _ in range(5)]
    await turns()
    await stand.pass_time(SECONDS)
    assert [type(task.exception()) for task in samples] == [error] * 5
    assert len(stand.window) == 0


async def test_sessions_of_one_group_are_each_remembered_where_they_went(make: Make) -> None:
    stand = make(size=4)
    samples = [stand.ask(session=f"rollout-{number}", policy=SPREAD) for number in range(4)]
    await turns()
    await stand.pass_time(SECONDS)
    [pod] = set(pods_of(*samples))
    for number in range(4):
        assert stand.parts.sessions.get(f"rollout-{number}", stand.parts.now) == (pod, 0)


async def test_a_rank_that_is_gone_is_no_place_for_the_others(make: Make) -> None:
    stand = make(size=2)
    beside = stand.parts.choose(beside=("pod-gone", 0))[1]
    assert not beside.is_beside
    assert [*beside.options] == sorted(beside.options, key=lambda one: one.cost)


async def test_a_decision_says_that_it_follows_its_group(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand = make(size=2)
    kept = Decisions()
    monkeypatch.setattr(stand.parts.picker, "_witnesses", (kept,))
    samples = [stand.ask(policy=SPREAD) for _ in range(2)]
    await turns()
    await stand.pass_time(SECONDS)
    told, alone = kept.listed()
    pod = pods_of(*samples)[0]
    assert f"{pod} has 1,600 of 1,601 tokens cached" in told.reason
    assert "this one goes with them: alone it would have gone to pod-" in told.reason
    assert "this one goes with them" not in alone.reason


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["ask", "ask", "ask", "cancel", "pass"]),
            st.integers(0, 2),
            st.sampled_from(["", "a", "b"]),
        ),
        max_size=40,
    ),
    size=st.integers(1, 4),
)
def test_every_caller_is_answered_once_and_nothing_stays(
    steps: list[tuple[str, int, str]], size: int
) -> None:
    async def run(monkeypatch: pytest.MonkeyPatch) -> None:
        stand = Stand(monkeypatch, size=size)
        prompts = [PROMPT, OTHER, SHARED]
        asked: list[asyncio.Task[Chosen]] = []
        groups: list[list[asyncio.Task[Chosen]]] = [[], [], []]
        for step, number, session in steps:
            if step == "ask":
                asked.append(stand.ask(prompts[number], session=session))
                groups[number].append(asked[-1])
                await turns()
            elif step == "cancel" and asked:
                asked[number % len(asked)].cancel()
                await turns()
            elif step == "pass":
                await stand.pass_time(SECONDS / 2)
            stand.check()
            waiting = [any(not task.done() for task in group) for group in groups]
            assert len(stand.window) == sum(waiting)
        await stand.pass_time(SECONDS)
        assert len(stand.window) == 0
        assert not stand.is_due
        answered = [task for task in asked if not task.cancelled()]
        assert all(task.done() for task in answered)
        assert len({task.result()[0].booking_id for task in answered}) == len(answered)
        assert len(stand.parts.bookings) == len(answered)

    with pytest.MonkeyPatch.context() as monkeypatch:
        asyncio.run(run(monkeypatch))
