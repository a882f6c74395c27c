"""What the table says of a pod whose events end, and of one that its source withholds."""

from warmpath.indexer.embedded import embedded_index
from warmpath.indexer.engines import vllm
from warmpath.indexer.follow.instance import RankSource
from warmpath.indexer.ranks import Ingest
from warmpath.router.pods.table import Pod, Status, that_serve


class Stand:
    """A pod of one rank, and a clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ingest = Ingest(
            embedded_index(1 << 20),
            hash_seed="",
            pending_bytes=1 << 20,
            stale_after=1.0,
            clock=lambda: self.now,
        )
        self.rank = self.ingest.add(RankSource("a", 0, "m", decode=vllm.decode, has_replay=False))
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
