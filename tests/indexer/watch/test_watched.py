"""A publisher that contradicts itself: no other pod is touched, and its rank does not stay exact.

One file, since all tests feed one fleet of watched ranks.
"""

import asyncio
import logging
from collections.abc import AsyncIterator

import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.indexer.consistent import check
from tests.indexer.followed import new_ingest
from tests.indexer.memory_index import MemoryIndex
from tests.waiting import until
from warmpath.indexer.embedded import embedded_index
from warmpath.indexer.index.contract import Index
from warmpath.indexer.keys.key import Chain, pack_words
from warmpath.indexer.trust import MOST_REASON, Level
from warmpath.indexer.watch.client import ProtocolError, Watcher
from warmpath.indexer.watch.watched_source import WatchedRank
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2 as pb

GROUPS = [pb.Group(number=0, kind="full_attention", block_size=16)]


class Fleet:
    """A well-behaved pod, and one of two ranks whose publisher says what a test says."""

    def __init__(self, index: Index) -> None:
        self.ingest = new_ingest(lambda: index, stale_after=1e9)
        self.other = self.ingest.watch("other", 0)
        self.other.connected()
        self.other.take_delta(delta(0, 0, added(1, 2, 3)))
        self.ranks: list[WatchedRank] = [self.ingest.watch("pod", number) for number in range(2)]
        self.watcher = Watcher(
            self.ranks, "nowhere:1", keyspace="k", credentials=None, retry_seconds=0.0
        )
        self.take(hello())

    def take(self, message: pb.WatchResponse) -> None:
        """Take a message as `Watcher.run` does."""
        try:
            self.watcher._take(message)
        except (ProtocolError, ValueError) as error:
            self.watcher.failed(f"refused: {error}")
            raise

    def loaded(self) -> None:
        """Take a snapshot of the keys 1 to 4 of rank 0."""
        self.take(part(1, 2, 3, 4))
        self.take(end())

    def held(self) -> set[int]:
        """Return which keys the well-behaved pod is shown to hold."""
        return {
            key
            for key in range(64)
            for place, _, _ in self.ingest.match(Chain(0, b"", 16, 1, (), pack_words([key])))
            if place.pod == "other"
        }

    def check(self) -> None:
        self.ingest.tick(1 << 16)
        check(self.ingest.index)
        assert self.other.trust.level is Level.EXACT
        assert self.held() == {1, 2, 3}


def state(rank: int, trust: str = "exact") -> pb.RankState:
    return pb.RankState(rank=rank, trust=trust, reason="told", groups=GROUPS)


def end() -> pb.WatchResponse:
    return pb.WatchResponse(end=pb.SnapshotEnd(sequence=7, ranks=[state(0), state(1)]))


def keys(*numbers: int, tier: str = "gpu", group: int = 0) -> pb.Keys:
    return pb.Keys(tier=tier, group=group, keys=pack_words(list(numbers)))


def added(*numbers: int, **place: object) -> pb.Change:
    return pb.Change(added=keys(*numbers, **place))  # type: ignore[arg-type]


def gone(*numbers: int, **place: object) -> pb.Change:
    return pb.Change(gone=keys(*numbers, **place))  # type: ignore[arg-type]


def delta(sequence: int, rank: int, *changes: pb.Change) -> pb.Delta:
    return pb.Delta(sequence=sequence, state=state(rank), changes=changes)


def hello(**fields: object) -> pb.WatchResponse:
    """Return the greeting that tells of a snapshot, unless `fields` say otherwise."""
    said = {"epoch": "e", "pod": "pod", "ranks": 2, "snapshot": True} | fields
    return pb.WatchResponse(hello=pb.Hello(**said))  # type: ignore[arg-type]


def part(*numbers: int, rank: int = 0) -> pb.WatchResponse:
    said = pb.SnapshotPart(rank=rank, tier="gpu", keys=pack_words(numbers))
    return pb.WatchResponse(part=said)


def change(sequence: int, rank: int, *changes: pb.Change) -> pb.WatchResponse:
    return pb.WatchResponse(delta=delta(sequence, rank, *changes))


def impossible(**figures: int) -> pb.WatchResponse:
    message = change(8, 0, added(5))
    message.delta.state.MergeFrom(pb.RankState(**figures))  # type: ignore[arg-type]
    return message


@pytest.fixture(params=["compiled", "memory"])
def fleet(request: pytest.FixtureRequest) -> Fleet:
    index = embedded_index(1 << 24) if request.param == "compiled" else MemoryIndex(1 << 24)
    return Fleet(index)


def levels(fleet: Fleet) -> set[Level]:
    return {rank.trust.level for rank in fleet.ranks}


def test_a_watcher_that_comes_back_is_not_exact_before_it_has_the_changes_that_it_missed(
    fleet: Fleet,
) -> None:
    fleet.loaded()
    for rank in fleet.ranks:
        rank.disconnected("cut")
    fleet.take(hello(newest=9, snapshot=False))
    assert levels(fleet) == {Level.DEGRADED}
    fleet.take(change(8, 0, gone(1)))
    assert levels(fleet) == {Level.DEGRADED}
    fleet.take(change(9, 1, added(5)))
    assert levels(fleet) == {Level.EXACT}
    fleet.take(hello(newest=9, snapshot=False))
    assert levels(fleet) == {Level.EXACT}, "it missed nothing"


def test_a_snapshot_is_not_exact_before_the_changes_of_its_time_on_the_way_have_arrived(
    fleet: Fleet,
) -> None:
    states = [state(0), state(1)]
    fleet.take(pb.WatchResponse(end=pb.SnapshotEnd(sequence=7, ranks=states, newest=8)))
    assert levels(fleet) == {Level.DEGRADED}
    fleet.take(change(8, 0, added(5)))
    assert levels(fleet) == {Level.EXACT}


WRONG = {
    "a key twice": change(8, 0, added(5, 5)),
    "a key that is there": change(8, 0, added(1)),
    "removed and never added": change(8, 0, gone(9)),
    "removed twice": change(8, 0, gone(1, 1)),
    "removed from another tier": change(8, 0, gone(1, tier="cpu")),
    "removed from another group": change(8, 0, gone(1, group=2**32 - 1)),
    "another tier": change(8, 0, added(5, tier="tape")),
    "half a key": change(8, 0, pb.Change(added=pb.Keys(tier="gpu", keys=b"half"))),
    "a change that says nothing": change(8, 0, pb.Change()),
    "another rank": change(8, 2, added(5)),
    "the last rank": change(8, 2**32 - 1, added(5)),
    "no trust": pb.WatchResponse(
        delta=pb.Delta(sequence=8, state=pb.RankState(), changes=[added(5)])
    ),
    "out of order": change(9, 0, added(5)),
    "a sequence of no batch": impossible(engine_sequence=1 << 63),
    "more copies than any memory has": impossible(copies=(1 << 64) - 1),
    "a larger cache than any memory": impossible(capacity=(1 << 64) - 1),
    "the end of no snapshot": end(),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_what_cannot_be_is_refused_and_its_rank_is_exact_no_longer(
    fleet: Fleet, wrong: pb.WatchResponse
) -> None:
    fleet.loaded()
    assert fleet.ranks[0].trust.level is Level.EXACT
    with pytest.raises((ProtocolError, ValueError)):
        fleet.take(wrong)
    assert levels(fleet) == {Level.DEGRADED}
    assert all(rank.trust.reason.startswith("refused: ") for rank in fleet.ranks)
    fleet.check()
    fleet.take(hello(epoch="f"))
    fleet.loaded()
    assert levels(fleet) == {Level.EXACT}, "a snapshot heals it"
    assert fleet.ranks[0].blocks() == {"gpu": 4}
    fleet.check()


def test_a_snapshot_that_names_a_key_twice_is_not_exact_and_the_next_one_is(fleet: Fleet) -> None:
    for parts, level in (
        ([[1, 2], [2, 3]], Level.DEGRADED),
        ([[4, 4]], Level.DEGRADED),
        ([[1, 2]], Level.EXACT),
    ):
        fleet.take(hello())
        for keys in parts:
            fleet.take(part(*keys))
        fleet.take(end())
        assert fleet.ranks[0].trust.level is level
        assert fleet.ranks[1].trust.level is Level.EXACT
        fleet.check()


def test_keys_that_were_given_up_for_want_of_room_may_be_taken_away() -> None:
    index = MemoryIndex(1 << 20)
    fleet = Fleet(index)
    fleet.loaded()
    number, sequence = 1000, 8
    while not index.stats().evicted:
        more = added(*range(number, number + 100))
        fleet.take(change(sequence, 1, more))
        number, sequence = number + 100, sequence + 1
    fleet.take(change(sequence, 1, gone(*range(1000, number))))


NUMBERS = st.lists(st.integers(0, 12), max_size=4)
PLACES = st.fixed_dictionaries(
    {"tier": st.sampled_from(["gpu", "cpu", "tape"]), "group": st.sampled_from([0, 1, 2**32 - 1])}
)
CHANGES = st.one_of(
    st.builds(lambda numbers, place: added(*numbers, **place), NUMBERS, PLACES),
    st.builds(lambda numbers, place: gone(*numbers, **place), NUMBERS, PLACES),
    st.just(pb.Change(emptied=pb.Emptied())),
    st.just(pb.Change()),
)
MESSAGES = st.one_of(
    st.builds(
        lambda rank, changes: change(0, rank, *changes),
        st.integers(0, 2),
        st.lists(CHANGES, max_size=3),
    ),
    st.builds(lambda rank, numbers: part(*numbers, rank=rank), st.integers(0, 2), NUMBERS),
    st.just(end()),
    st.just(pb.WatchResponse()),
    st.just(hello()),
)


@given(st.lists(MESSAGES, max_size=30))
def test_whatever_it_says_its_exact_ranks_hold_what_was_said_and_others_keep_theirs(
    messages: list[pb.WatchResponse],
) -> None:
    fleet = Fleet(MemoryIndex(1 << 24))
    for message in messages:
        said = pb.WatchResponse.FromString(message.SerializeToString())
        if said.HasField("delta"):
            said.delta.sequence = fleet.watcher._sequence + 1
        try:
            fleet.take(said)
        except (ProtocolError, ValueError):
            assert all(rank.trust.level is not Level.EXACT for rank in fleet.ranks)
            fleet.take(hello(epoch="f"))
        fleet.check()


class OnceWrong(grpc.GenericRpcHandler):  # type: ignore[misc]
    """A publisher whose first answer ends with a message that cannot be."""

    def __init__(self, wrong: bytes) -> None:
        self.wrong = wrong
        self.calls = 0
        self.may_go_on = asyncio.Event()

    def service(self, _: object) -> object:
        return grpc.unary_stream_rpc_method_handler(self._watch)

    async def _watch(self, raw: bytes, context: object) -> AsyncIterator[bytes]:
        del context
        self.calls += 1
        if self.calls > 1:
            await self.may_go_on.wait()
        assert not pb.WatchRequest.FromString(raw).epoch
        for message in (hello(), part(1, 2), end()):
            yield message.SerializeToString()
        if self.calls == 1:
            yield self.wrong
        await asyncio.Event().wait()


def test_the_log_has_the_level_from_before_and_a_worse_one_does_not_restart_the_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    now = 0.0
    ingest = new_ingest(lambda: MemoryIndex(1 << 24), stale_after=5.0, clock=lambda: now)
    rank = ingest.watch("pod", 0)
    rank.connected()
    rank.take_state(state(0))
    now = 10.0
    rank.limit("no answer")
    rank.disconnected("no answer")
    now = 20.0
    rank.tick()
    assert (rank.trust.since, rank.inexact_since) == (20.0, 10.0)
    rank.connected()
    rank.begin_snapshot()
    assert rank.inexact_since == 10.0
    assert caplog.messages == [
        "pod pod rank 0: exact, was cold: told",
        "pod pod rank 0: degraded, was exact: no answer",
        "pod pod rank 0: stale, was degraded: no answer",
        "pod pod rank 0: cold, was stale: a snapshot is under way",
    ]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (change(8, 0, gone(9)).SerializeToString(), "removes keys that are not"),
        (b"\xff\xff", "a message cannot be read"),
    ],
)
async def test_a_watcher_that_refused_something_asks_for_a_snapshot(
    wrong: bytes, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    publisher, server = OnceWrong(wrong), grpc.aio.server()
    server.add_generic_rpc_handlers((publisher,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    ingest = new_ingest(MemoryIndex, stale_after=1e9)
    ranks = [ingest.watch("pod", number) for number in range(2)]
    watcher = Watcher(
        ranks, f"127.0.0.1:{port}", keyspace="k", credentials=None, retry_seconds=0.01
    )
    task = asyncio.create_task(watcher.run())
    await until(lambda: publisher.calls > 1)
    assert [rank.trust.level for rank in ranks] == [Level.DEGRADED] * 2
    publisher.may_go_on.set()
    await until(lambda: ranks[0].trust.level is Level.EXACT)
    assert ranks[0].blocks() == {"gpu": 2}
    assert told in caplog.text
    assert not [record for record in caplog.records if record.exc_info]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await server.stop(None)


def test_a_publisher_may_say_its_pods_name_where_the_id_is_a_longer_one() -> None:
    ingest = new_ingest(MemoryIndex, stale_after=1e9)
    rank = ingest.watch("b/x:8001", 0)
    watcher = Watcher([rank], "", keyspace="k", credentials=None, retry_seconds=0.0, name="x")
    for name in ("x", "b/x:8001"):
        watcher._take(hello(pod=name, ranks=1))
    with pytest.raises(ProtocolError, match="is pod 'y''s"):
        watcher._take(hello(pod="y", ranks=1))


def test_the_engines_capacity_counts_for_as_long_as_the_publisher_says_none() -> None:
    [rank, _] = Fleet(MemoryIndex()).ranks
    rank.take_state(state(0))
    assert rank.capacity == 0
    rank.learn_capacity(96)
    assert rank.capacity == 96
    says = pb.RankState(capacity=50)
    says.MergeFrom(state(0))
    rank.take_state(says)
    assert rank.capacity == 50


def test_blocks_that_are_told_anew_are_counted_once() -> None:
    fleet = Fleet(MemoryIndex())
    fleet.loaded()
    [rank, _] = fleet.ranks
    rank.begin_snapshot(keep=True)
    assert rank.blocks() == {"gpu": 4}
    rank.take_part(pb.SnapshotPart(rank=0, tier="gpu", keys=pack_words([1, 2, 3])))
    assert rank.blocks() == {"gpu": 4}
    rank.take_part(pb.SnapshotPart(rank=0, tier="gpu", keys=pack_words([5, 6, 7])))
    assert rank.blocks() == {"gpu": 6}
    rank.end_snapshot()
    assert rank.blocks() == {"gpu": 6}


@pytest.mark.parametrize("is_known", [False, True])
def test_what_a_publisher_is_quoted_with_has_a_length(*, is_known: bool) -> None:
    fleet = Fleet(MemoryIndex())
    if is_known:
        fleet.loaded()
    with pytest.raises(ProtocolError) as raised:
        fleet.take(hello(epoch="f", pod="x" * 1_000_000, snapshot=False))
    for rank in fleet.ranks:
        for take in (rank.disconnected, rank.refused, rank.forget):
            take(str(raised.value))
            assert len(rank.trust.reason) <= MOST_REASON
    fleet.check()
