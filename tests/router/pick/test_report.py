"""Reports on picks, from any caller: what they change, and which contradict themselves."""

import pytest

from tests.router.consistent import check
from tests.router.pick.picker_parts import Parts
from warmpath.router.pick.report import Report, carry_out, check_event
from warmpath.router.prompt.bad_request import BadRequestError


def test_reports_follow_a_pick_from_its_start_to_its_end() -> None:
    parts = Parts()
    placed = parts.picker.reserve(parts.ask(), parts.now)
    name = placed.booking_id
    told = [
        Report(name, "started", pod="pod-2"),
        Report(name, "first_token", cached_tokens=32, prompt_tokens=1601),
        Report(name, "finished", cached_tokens=48, output_tokens=5),
    ]
    assert [carry_out(report, parts.picker, parts.now) for report in told] == [True] * 3
    assert parts.seen == ["picked", "started pod-2", "told 32", "first token", "finished"]
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
