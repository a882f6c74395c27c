"""Reports on picks, from any caller: what they change, which contradict themselves, and which make models doubtful."""

from unittest.mock import ANY, call, create_autospec

import pytest

from tests.router.consistent import check
from tests.router.pick.picker_parts import Parts
from tests.router.pick.weighed import choice, option, placed
from warmpath.router.pick.pick import PAUSE_SECONDS, DoubtedModels, End, Witness
from warmpath.router.pick.report import Report, carry_out, check_event
from warmpath.router.pick.weigh import Traits
from warmpath.router.prompt.bad_request import BadRequestError


def test_reports_follow_a_pick_from_its_start_to_its_end() -> None:
    witness = create_autospec(Witness, instance=True)
    parts = Parts(witnesses=(witness,))
    placed = parts.picker.reserve(parts.ask(), parts.now)
    name = placed.booking_id
    told = [
        Report(name, "started", pod="pod-2"),
        Report(name, "first_token", cached_tokens=32, prompt_tokens=1601),
        Report(name, "finished", cached_tokens=48, output_tokens=5),
    ]
    assert [carry_out(report, parts.picker, parts.now) for report in told] == [True] * 3
    assert placed.went == ("pod-2", 0)
    assert witness.mock_calls == [
        call.picked(placed, ANY),
        call.started(placed),
        call.found_cached(placed, 32, 1601),
        call.first_token(placed, parts.now),
        call.ended(placed, "finished", parts.now),
    ]
    assert placed.output_tokens == 5
    assert not any(carry_out(report, parts.picker, parts.now) for report in told)
    check(parts.picking)


@pytest.mark.parametrize(
    ("report", "problem"),
    [
        (Report("a", "finished", cached_tokens=2, prompt_tokens=1), "cached_tokens: is 2; the prompt"),
        (Report("a", "started", pod="other"), "pod: is 'other'; the router knows no such pod"),
        (Report("a", "started", pod="pod-0", rank=1), "rank: is 1; the ranks of pod 'pod-0' are 0 to 0"),
        (Report("a", "started", pod="pod-0", rank=-1), "rank: is -1; the ranks of pod"),
    ],
)  # fmt: skip
def test_a_report_that_cannot_be_true_is_refused(report: Report, problem: str) -> None:
    with pytest.raises(BadRequestError, match=problem):
        check_event(report, Parts().pods)


def test_a_report_that_can_be_true_is_not_refused() -> None:
    pods = Parts().pods
    check_event(Report("a", "finished", cached_tokens=7), pods)
    check_event(Report("a", "started", pod="pod-2"), pods)
    # Only the start says where a request went.
    check_event(Report("a", "failed", pod="other"), pods)


@pytest.mark.parametrize(
    ("model", "traits", "end", "is_doubted"),
    [
        ("m", Traits("text", has_adapter=True), "failed", True),
        ("", Traits("ids"), "failed", True),
        ("m", Traits("text"), "failed", False),
        ("m", Traits("text", has_adapter=True), "finished", False),
        ("m", Traits("text", has_adapter=True), "expired", False),
    ],
)
def test_only_a_failed_request_that_named_no_base_model_is_a_reason(
    model: str, traits: Traits, end: End, is_doubted: bool
) -> None:
    doubted: list[str] = []
    one = placed(choice(option("a", 0)), model=model, traits=traits)
    DoubtedModels(doubted.append).ended(one, end, 5.0)
    assert doubted == [model] * is_doubted


def test_a_flood_of_failures_is_a_reason_once_in_a_while() -> None:
    doubted: list[str] = []
    doubts = DoubtedModels(doubted.append)
    traits = Traits("text", has_adapter=True)
    one, other = (placed(choice(option("a")), model=model, traits=traits) for model in ("m", ""))
    for _ in range(1000):
        doubts.ended(one, "failed", 5.0)
        doubts.ended(other, "failed", 5.0)
    assert doubted == ["m", ""]
    doubts.ended(one, "failed", 5.0 + 2 * PAUSE_SECONDS)
    assert doubted == ["m", "", "m"]
