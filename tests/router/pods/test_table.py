"""What the table says of pods: who serves, who is ready, and which adapters are found by name."""

from dataclasses import replace

import pytest

from tests.indexer.followed import new_ingest, source
from warmpath.router.assemble.scraped import ready_pods
from warmpath.router.pods import table
from warmpath.router.pods.table import Pod, PodTable, Status, that_serve


class Stand:
    """A pod of one rank, and a clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ingest = new_ingest(clock=lambda: self.now)
        self.rank = self.ingest.add(source("a", has_replay=False))
        self.pod = Pod("a", "h:1", "m", (self.rank,))

    def looked(self) -> None:
        self.pod.status = Status(healthy=True, looked_at=self.now)

    def serves(self) -> bool:
        assert bool(that_serve([self.pod])) is self.pod.serves
        return self.pod.serves


def test_a_pod_does_not_serve_from_the_moment_its_events_end_until_a_later_probe_succeeds() -> None:
    stand = Stand()
    stand.rank.connected()
    stand.now = 5.0
    stand.looked()
    assert stand.serves()
    stand.now = 6.0
    stand.rank.disconnected()
    assert not stand.serves()
    assert not stand.pod.ready
    stand.now = 7.0
    stand.rank.disconnected()
    assert not stand.serves(), "another attempt to connect is no later loss"
    stand.looked()
    assert stand.serves()
    stand.now = 20.0
    stand.ingest.tick(1)
    assert stand.serves(), "only its events are away"


def test_a_pod_whose_events_were_never_heard_serves_once_a_probe_succeeds() -> None:
    stand = Stand()
    assert not stand.serves()
    stand.now = 1.0
    stand.looked()
    assert stand.serves()


def test_a_pod_that_its_source_withholds_neither_serves_nor_is_ready() -> None:
    stand = Stand()
    stand.rank.connected()
    stand.now = 1.0
    stand.looked()
    stand.pod.withheld = "not ready"
    assert not stand.serves()
    assert not stand.pod.ready


WELL = Status(healthy=True, reason="well")


@pytest.mark.parametrize(
    ("status", "ready"),
    [
        (WELL, 1.0),
        (Status(), 1.0),
        (replace(WELL, healthy=False), 0.0),
        (replace(WELL, refuses=True), 0.0),
    ],
    ids=["well", "not asked yet", "down", "drains"],
)
def test_a_pod_is_ready_if_requests_may_be_sent_to_it(status: Status, ready: float) -> None:
    pods = PodTable([Pod("pod-1", "h:1", "demo", (), status, has_events=False)])
    [sample] = ready_pods(pods).samples
    assert sample.labels == {"pod": "pod-1", "model": "demo"}
    assert sample.value == ready


def test_a_pod_that_comes_or_goes_costs_no_other_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(table, "endpoint", lambda address: asked.append(address) or address)
    pods = PodTable(Pod(str(one), f"h:{one}", "m", ()) for one in range(100))
    asked.clear()
    pods.add(Pod("new", "h:7", "m", ()))
    assert pods.at("h:7") == ["7", "new"]
    pods.remove("7")
    assert (pods.at("h:7"), asked) == (["new"], ["h:7", "h:7"])
    pods.remove("new")
    assert (pods.at("h:7"), len([*pods]), len(pods.of_model("m"))) == ((), 99, 99)


def test_engines_of_other_kinds_find_adapters_by_other_names() -> None:
    adapters = Status(adapters=frozenset({"m", "tuned"}))
    named = Pod("a", "a:1", "m", (), status=adapters)
    beside = Pod("b", "b:1", "m", (), status=adapters, engine="sglang")
    assert PodTable([beside]).found_by_name() == set()
    assert PodTable([beside, named]).found_by_name() == {"m", "tuned"}
