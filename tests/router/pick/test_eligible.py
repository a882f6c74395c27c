"""Which pods may take a request, and what is said where none may."""

from collections.abc import Sequence

import pytest

from tests.router.pick.weighed import FakeRank
from warmpath.indexer.trust import Level, Trust
from warmpath.router.pick.eligible import Eligible, NoPodError, Wanted
from warmpath.router.pods.table import Pod, PodTable, Role, Status

WELL = Status(healthy=True, reason="/health answers", looked_at=100.0)
ILL = Status(healthy=False, reason="no answer in time")
DRAINING = Status(healthy=False, reason="/health answers 503", refuses=True)


def pod(name: str, status: Status = WELL, *, model: str = "m") -> Pod:
    return Pod(name, f"{name}:80", model, (FakeRank(name),), status)


def cut(name: str, status: Status = WELL, *, since: float = 5.0) -> Pod:
    """Return a pod whose event stream is gone since then."""
    found = pod(name, status)
    [rank] = found.ranks
    assert isinstance(rank, FakeRank)
    rank.is_connected = False
    rank.believe(Trust(Level.STALE, "the event stream is gone", since))
    rank.lost_at = since
    return found


def names(
    pods: Sequence[Pod],
    *,
    model: str = "m",
    named: Sequence[str] = (),
    lora: str = "",
    disaggregated: bool = False,
) -> list[str]:
    found = Eligible(PodTable(pods))(Wanted(model, lora, tuple(named), disaggregated))
    return [one.id for one in found.of]


def test_pods_of_other_models_take_no_part() -> None:
    assert names([pod("a"), pod("b", model="other"), pod("c")]) == ["a", "c"]


def test_pods_take_part_from_when_they_are_known_until_they_are_not() -> None:
    known = PodTable([pod("a")])
    known.add(pod("b"))
    known.add(pod("c", model="other"))
    assert [one.id for one in known.of_model("m")] == ["a", "b"]
    known.remove("a")
    assert [one.id for one in known.of_model("m")] == ["b"]
    known.of_model("m").clear()
    assert [one.id for one in known.of_model("m")] == ["b"]
    known.remove("c")
    assert not known.of_model("other")


def test_only_the_pods_named_take_part_and_unknown_names_are_passed_over() -> None:
    pods = [pod("a"), pod("b"), pod("c", model="other")]
    assert names(pods, named=["b", "nowhere", "c", "b"]) == ["b"]


def test_a_request_without_a_model_may_go_to_any_pod_that_is_well() -> None:
    pods = [pod("a"), pod("b", ILL), pod("c", model="other"), pod("d", DRAINING, model="other")]
    assert names(pods, model="") == ["a", "c"]
    assert names(pods, model="", named=["b", "c", "nowhere"]) == ["c"]
    assert names(pods, model="", named=["b"]) == ["b"]


def test_what_is_said_where_no_pod_may_take_a_request_without_a_model_names_none() -> None:
    for pods, named, said in (
        ([], [], "no pod is known"),
        ([pod("a")], ["b", "c"], "none of the 2 named pods is known"),
        ([pod("a", DRAINING)], [], "every pod that may be picked refuses requests"),
    ):
        with pytest.raises(NoPodError) as raised:
            names(pods, model="", named=named)
        assert str(raised.value) == said


def test_a_pod_that_refuses_requests_is_never_picked() -> None:
    assert names([pod("a", DRAINING), pod("b")]) == ["b"]
    assert names([pod("a", DRAINING), pod("b", ILL)]) == ["b"], "it may be well again"


def test_an_ill_pod_serves_only_where_there_is_no_other() -> None:
    assert names([pod("a", ILL), pod("b")]) == ["b"]
    assert names([pod("a", ILL)]) == ["a"]
    assert names([pod("a", ILL), pod("b")], named=["a"]) == ["a"]


def test_a_pod_whose_stream_was_cut_goes_on_where_a_later_look_finds_it_well() -> None:
    assert names([cut("a"), pod("b")]) == ["a", "b"]
    assert names([cut("a", since=200.0), pod("b")]) == ["b"], "it may have died with its stream"
    assert names([cut("a", Status()), pod("b")]) == ["b"]


def test_a_pod_without_events_serves_unless_it_is_known_to_be_ill() -> None:
    quiet = pod("a", Status())
    quiet.has_events = False
    [rank] = quiet.ranks
    assert isinstance(rank, FakeRank)
    rank.is_connected = False
    assert names([quiet, pod("b")]) == ["a", "b"]
    quiet.status = ILL
    assert names([quiet, pod("b")]) == ["b"]


def test_pods_that_serve_the_adapter_come_before_those_that_may_load_it() -> None:
    tuned = pod("a", Status(healthy=True, models=("m", "tuned"), looked_at=100.0))
    assert names([tuned, pod("b")], lora="tuned") == ["a"]
    assert names([tuned, pod("b")], lora="other") == ["a", "b"]
    assert names([tuned, pod("b")]) == ["a", "b"]


def test_ill_pods_of_one_role_serve_though_pods_of_the_other_role_are_well() -> None:
    def part(name: str, role: Role, status: Status = WELL) -> Pod:
        found = pod(name, status)
        found.role = role
        return found

    decode = [part("d1", "decode"), part("d2", "decode", ILL)]
    assert names([part("p1", "prefill", ILL), *decode], disaggregated=True) == ["p1", "d1"]
    assert names([part("p1", "prefill", DRAINING), *decode], disaggregated=True) == ["d1"]
    assert names([part("p1", "prefill", ILL), *decode]) == ["d1"]
    either = [part("b1", "both"), part("b2", "both", ILL)]
    assert names([part("p1", "prefill", ILL), *either], disaggregated=True) == ["b1"]


@pytest.mark.parametrize(
    ("pods", "named", "problem"),
    [
        ([pod("a", model="other")], [], "no pod serves 'm'"),
        ([pod("a")], ["b", "c"], "none of the 2 named pods serves 'm'"),
        ([pod("a", DRAINING)], [], "every pod of 'm' that may be picked refuses requests"),
        ([pod("a"), pod("b", DRAINING)], ["b"], "every pod of 'm' that may be picked refuses"),
    ],
)
def test_where_no_pod_is_left_it_is_said_what_was_missing(
    pods: list[Pod], named: list[str], problem: str
) -> None:
    with pytest.raises(NoPodError, match=problem):
        names(pods, named=named)
