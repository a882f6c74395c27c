"""Picks avoid ranks that answer nothing, whatever the policy and the caches say."""

from collections.abc import Iterator

import pytest

from tests.router.consistent import check
from tests.router.pick.picker_parts import KeyedPrompt, Parts, first
from warmpath.router.load.engine_metrics import Observed
from warmpath.router.load.stuck import ENOUGH
from warmpath.router.pick.report import Report, carry_out
from warmpath.scorer.policy import policy_names


def answered(parts: Parts, prompt: KeyedPrompt, **fields: object) -> str:
    """Pick, and report the answer at once; return the pod."""
    booking_id, choice = parts.choose(prompt=prompt, **fields)
    parts.answer(booking_id, after=0.1)
    return first(choice)


def heard() -> tuple[Parts, Iterator[KeyedPrompt]]:
    """Return two pods whose answers are known to be reported, and prompts that neither holds."""
    parts, other = Parts(pods=2), prompts()
    for _ in range(2 * ENOUGH):
        answered(parts, next(other))
    return parts, other


def prompts() -> Iterator[KeyedPrompt]:
    number = 1000
    while True:
        number += 1000
        yield KeyedPrompt(range(number, number + 4))


@pytest.mark.parametrize("is_watched", [True, False])
def test_a_hung_engine_loses_its_hot_prefix_and_comes_back_when_it_answers(
    is_watched: bool,
) -> None:
    parts, other = heard()
    parts.warm(0, 100)
    sent: dict[str, list[str]] = {"pod-0": [], "pod-1": []}
    for _ in range(150):
        booking_id, choice = parts.choose(is_watched=is_watched)
        sent[first(choice)].append(booking_id)
        parts.now += 0.4
        for one in sent["pod-1"]:
            parts.answer(one)
        # Its metrics stand still, and say that it is idle.
        parts.loads.observe("pod-0", 0, Observed(1, 0, 0.1, parts.now))
        check(parts.picking)
    assert len(sent["pod-0"]) < 20
    for one in sent["pod-0"]:
        parts.answer(one)
    assert answered(parts, next(other)) == "pod-0"


@pytest.mark.parametrize("is_refusal", [False, True])
def test_clients_that_leave_early_hide_no_hung_engine_and_its_refusals_make_none(
    is_refusal: bool,
) -> None:
    parts, _ = heard()
    for _ in range(20):
        booking_id, _ = parts.choose(pods=parts.pods[:1], is_watched=True)
        parts.now += 0.5
        carry_out(Report(booking_id, "failed", is_refusal=is_refusal), parts.picker, parts.now)
    assert set(parts.loads.avoided(parts.now)) == (set() if is_refusal else {("pod-0", 0)})


def test_picks_whose_callers_are_gone_before_their_answers_make_no_engine_stuck() -> None:
    parts, _ = heard()
    for _ in range(20):
        booking_id, _ = parts.choose(pods=parts.pods[:1], is_watched=True)
        placed = parts.picker.get(booking_id)
        assert placed is not None
        parts.now += 0.5
        parts.picker.cancel(booking_id, placed.number, parts.now)
    assert not parts.loads.avoided(parts.now)


@pytest.mark.parametrize("policy", policy_names())
def test_no_policy_picks_a_stuck_rank_while_there_is_another(policy: str) -> None:
    parts, other = heard()
    parts.warm(0, 100)
    parts.choose(pods=parts.pods[:1])
    parts.now += 10.0
    for _ in range(5):
        assert answered(parts, next(other), policy=policy) == "pod-1"
    assert answered(parts, next(other), policy=policy, pods=parts.pods[:1]) == "pod-0"


def test_where_all_ranks_are_stuck_all_take_part() -> None:
    parts, other = heard()
    for pod in parts.pods:
        parts.choose(prompt=next(other), pods=[pod])
    parts.now += 10.0
    assert len(parts.loads.avoided(parts.now)) == 2
    assert len(parts.weigh(prompt=next(other)).options) == 2


def test_a_stuck_pod_of_one_role_is_avoided_for_that_role() -> None:
    parts = Parts(pods=4, roles=["prefill", "prefill", "decode", "decode"])
    other = prompts()
    for _ in range(2 * ENOUGH):
        answered(parts, next(other), disaggregated=True)
    parts.choose(prompt=next(other), disaggregated=True, pods=[parts.pods[0], parts.pods[2]])
    parts.now += 10.0
    choice = parts.weigh(prompt=next(other), disaggregated=True)
    assert [one.candidate.pod for one in choice.options] == ["pod-1"]
    assert [one.candidate.pod for one in choice.decode] == ["pod-3"]
