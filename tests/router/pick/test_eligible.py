"""Which pods may take a request, and what is said where none may."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.router.pick.weighed import FakeRank
from warmpath.indexer.trust import Level, Trust
from warmpath.router.pick.eligible import Eligible, NoPodError, Wanted
from warmpath.router.pods.table import Pod, PodTable, Role, Status

WELL = Status(healthy=True, reason="/health answers", looked_at=100.0)
ILL = Status(healthy=False, reason="no answer in time")
DRAINING = Status(healthy=False, reason="/health answers 503", refuses=True)


def pod(name: str, status: Status = WELL, *, model: str = "m", role: Role = "both") -> Pod:
    return Pod(name, f"{name}:80", model, (FakeRank(name),), status, role=role)


def cut(name: str, status: Status = WELL, *, since: float = 5.0) -> Pod:
    """Return a pod whose event stream is gone since then."""
    found = pod(name, status)
    [rank] = found.ranks
    assert isinstance(rank, FakeRank)
    rank.is_connected = False
    rank.believe(Trust(Level.STALE, "the event stream is gone", since))
    rank.lost_at = since
    return found


def quiet(name: str, status: Status) -> Pod:
    found = cut(name, status)
    found.has_events = False
    return found


def names(pods: Sequence[Pod], named: Sequence[str] = (), **wanted: Any) -> list[str]:
    found = Eligible(PodTable(pods))(Wanted(**({"model": "m", "named": tuple(named)} | wanted)))
    return [one.id for one in found.of]


OTHER = pod("c", model="other")
TUNED = pod("a", Status(healthy=True, models=("m", "tuned"), looked_at=100.0))
OF_ANY = [pod("a"), pod("b", ILL), OTHER, pod("d", DRAINING, model="other")]
DECODE = [pod("d1", role="decode"), pod("d2", ILL, role="decode")]
APART = {"disaggregated": True}


@pytest.mark.parametrize(
    ("expected", "pods", "wanted"),
    [
        pytest.param("ab", [pod("a"), OTHER, pod("b")], {}, id="no pods of other models"),
        pytest.param("b", [pod("a"), pod("b"), OTHER], {"named": ["b", "x", "c", "b"]}, id="those named and known"),
        pytest.param("ac", OF_ANY, {"model": ""}, id="without a model any that is well"),
        pytest.param("c", OF_ANY, {"model": "", "named": ["b", "c", "x"]}, id="of those named too"),
        pytest.param("b", OF_ANY, {"model": "", "named": ["b"]}, id="or an ill one"),
        pytest.param("b", [pod("a", DRAINING), pod("b")], {}, id="none that refuses"),
        pytest.param("b", [pod("a", DRAINING), pod("b", ILL)], {}, id="rather an ill one, which may be well again"),
        pytest.param("b", [pod("a", ILL), pod("b")], {}, id="no ill one beside a well one"),
        pytest.param("a", [pod("a", ILL)], {}, id="an ill one alone"),
        pytest.param("a", [pod("a", ILL), pod("b")], {"named": ["a"]}, id="an ill one that is named alone"),
        pytest.param("ab", [cut("a"), pod("b")], {}, id="one cut off that a later look found well"),
        pytest.param("b", [cut("a", since=200.0), pod("b")], {}, id="not one that may have died with its stream"),
        pytest.param("b", [cut("a", Status()), pod("b")], {}, id="nor one cut off and never looked at"),
        pytest.param("ab", [quiet("a", Status()), pod("b")], {}, id="one without events that may be well"),
        pytest.param("b", [quiet("a", ILL), pod("b")], {}, id="not one without events that is ill"),
        pytest.param("a", [TUNED, pod("b")], {"lora": "tuned"}, id="those with the adapter first"),
        pytest.param("ab", [TUNED, pod("b")], {"lora": "other"}, id="all where none has the adapter"),
        pytest.param("ab", [TUNED, pod("b")], {}, id="all without an adapter"),
        pytest.param("p1d1", [pod("p1", ILL, role="prefill"), *DECODE], APART, id="ill ones of a role without well ones"),
        pytest.param("d1", [pod("p1", DRAINING, role="prefill"), *DECODE], APART, id="none of a role that refuses"),
        pytest.param("d1", [pod("p1", ILL, role="prefill"), *DECODE], {}, id="no ill ones where roles do not matter"),
        pytest.param("b1", [pod("p1", ILL, role="prefill"), pod("b1"), pod("b2", ILL)], APART, id="those of both roles"),
    ],
)  # fmt: skip
def test_who_may_take_a_request(expected: str, pods: list[Pod], wanted: dict[str, Any]) -> None:
    assert "".join(names(pods, **wanted)) == expected


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


@pytest.mark.parametrize(
    ("said", "pods", "named", "model"),
    [
        ("no pod serves 'm'", [OTHER], [], "m"),
        ("none of the 2 named pods serves 'm'", [pod("a")], ["b", "c"], "m"),
        ("every pod of 'm' that may be picked refuses requests", [pod("a", DRAINING)], [], "m"),
        ("every pod of 'm' that may be picked refuses requests", [pod("a"), pod("b", DRAINING)], ["b"], "m"),
        ("no pod is known", [], [], ""),
        ("none of the 2 named pods is known", [pod("a")], ["b", "c"], ""),
        ("every pod that may be picked refuses requests", [pod("a", DRAINING)], [], ""),
    ],
)  # fmt: skip
def test_where_no_pod_is_left_it_is_said_what_was_missing(
    said: str, pods: list[Pod], named: list[str], model: str
) -> None:
    with pytest.raises(NoPodError) as raised:
        names(pods, named, model=model)
    assert str(raised.value) == said
