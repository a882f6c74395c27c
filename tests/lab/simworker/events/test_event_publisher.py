"""The event stream's sockets, numbering, both forms of replay, and batches that are spoiled on their way."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import zmq
import zmq.asyncio
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.lab.simworker.state_machines import long_test
from tests.recordings import VLLM_EVENTS
from warmpath.lab.simworker.engine import BrokenInvariantError
from warmpath.lab.simworker.events.faulty_outlet import EventFaults, FaultError, FaultyOutlet, Frame
from warmpath.lab.simworker.events.publisher import EndpointError, Journal, Publisher, rank_endpoint

RECORDED = json.loads(VLLM_EVENTS.read_text())
STREAM = RECORDED["publisher_stream"]

Open = Callable[..., Publisher]


@pytest.fixture
async def context() -> AsyncIterator[zmq.asyncio.Context]:
    context = zmq.asyncio.Context()
    yield context
    # A test that failed leaves sockets open, for which `term` would wait.
    context.destroy(linger=0)


@pytest.fixture
async def open_publisher(context: zmq.asyncio.Context) -> AsyncIterator[Open]:
    opened: list[tuple[Publisher, asyncio.Task[None]]] = []

    def make(*, replays_topic: bool = True, faults: EventFaults | None = None) -> Publisher:
        publisher = Publisher(
            context,
            "tcp://127.0.0.1:*",
            "tcp://127.0.0.1:*",
            topic=STREAM["topic"],
            journal=Journal(STREAM["buffer_steps"]),
            outlet=FaultyOutlet(faults),
            replays_topic=replays_topic,
            clock=time.monotonic,
        )
        opened.append((publisher, asyncio.create_task(publisher.serve_replay())))
        return publisher

    yield make
    for publisher, task in opened:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        publisher.close()


async def replayed(
    context: zmq.asyncio.Context, publisher: Publisher, start: int
) -> list[list[bytes]]:
    with context.socket(zmq.DEALER) as dealer:
        dealer.connect(publisher.replay_endpoint)
        await dealer.send_multipart([b"", start.to_bytes(8, "big")])
        replies = []
        while not replies or replies[-1][-2] != b"\xff" * 8:
            replies.append(await dealer.recv_multipart())
        return replies


@pytest.mark.parametrize("case", STREAM["replays"], ids=lambda case: f"from-{case['start_seq']}")
async def test_replays_are_frame_for_frame_the_engines_own(
    context: zmq.asyncio.Context, open_publisher: Open, case: dict[str, Any]
) -> None:
    publisher = open_publisher()
    for _, _, payload in STREAM["live_frames"]:
        publisher.publish(bytes.fromhex(payload))
    replies = await replayed(context, publisher, case["start_seq"])
    assert [[frame.hex() for frame in reply] for reply in replies] == case["reply_frames_dealer"]


async def test_older_replays_have_no_topic(
    context: zmq.asyncio.Context, open_publisher: Open
) -> None:
    publisher = open_publisher(replays_topic=False)
    publisher.publish(b"batch")
    replies = await replayed(context, publisher, 0)
    assert replies == [[b"", bytes(8), b"batch"], [b"", b"\xff" * 8, b""]]


async def test_what_is_no_request_gets_no_answer(
    context: zmq.asyncio.Context, open_publisher: Open
) -> None:
    publisher = open_publisher()
    publisher.publish(b"batch")
    with context.socket(zmq.DEALER) as dealer:
        dealer.connect(publisher.replay_endpoint)
        await dealer.send_multipart([b"", b"short"])
        await dealer.send_multipart([b"", bytes(8), b"more"])
        await dealer.send_multipart([b"", bytes(8)])
        first = await dealer.recv_multipart()
        last = await dealer.recv_multipart()
        assert (first[-1], last[-2]) == (b"batch", b"\xff" * 8)
        assert not await dealer.poll(0)


async def test_live_frames_are_topic_number_and_payload_and_late_ones_come(
    context: zmq.asyncio.Context, open_publisher: Open
) -> None:
    publisher = open_publisher()
    with context.socket(zmq.SUB) as live:
        live.setsockopt(zmq.SUBSCRIBE, b"")
        live.connect(publisher.endpoint)
        while not await live.poll(10):
            # A subscription takes a moment; what is published before it is lost.
            publisher.publish(b"are you there")
        while await live.poll(20):
            await live.recv_multipart()
        publisher.outlet.configure(
            EventFaults(drop_next=1, duplicate_next=2, delay_next=2, delay_seconds=0.01)
        )
        number = publisher.journal.next_sequence
        publisher.publish(b"dropped")
        publisher.publish(b"late and twice")
        frames = [await live.recv_multipart() for _ in range(2)]
    topic = STREAM["topic"].encode()
    assert frames == [[topic, (number + 1).to_bytes(8, "big"), b"late and twice"]] * 2
    kept = [reply[-1] for reply in await replayed(context, publisher, number)]
    assert kept == [b"dropped", b"late and twice", b""]


async def test_a_new_life_is_numbered_from_zero_and_keeps_nothing(
    context: zmq.asyncio.Context, open_publisher: Open
) -> None:
    publisher = open_publisher(faults=EventFaults(delay=1.0, delay_seconds=60.0))
    publisher.publish(b"old")
    publisher.begin_life()
    assert publisher.outlet.held == 0
    publisher.publish(b"new")
    replies = await replayed(context, publisher, 0)
    assert next(reply[-2:] for reply in replies) == [bytes(8), b"new"]
    assert len(replies) == 2


async def test_an_endpoint_that_is_taken_is_named(
    context: zmq.asyncio.Context, open_publisher: Open
) -> None:
    taken = open_publisher().endpoint
    with pytest.raises(EndpointError, match=taken):
        Publisher(
            context, "tcp://127.0.0.1:*", taken,
            topic="", journal=Journal(1), outlet=FaultyOutlet(), replays_topic=True,
            clock=time.monotonic,
        )  # fmt: skip


@pytest.mark.parametrize("case", RECORDED["endpoint_port_offsets"], ids=str)
def test_ranks_have_the_ports_that_vllm_gives_them(case: dict[str, Any]) -> None:
    assert rank_endpoint(case["endpoint"], case["dp_rank"]) == case["result"]


@pytest.mark.parametrize(
    ("endpoint", "message"),
    [
        ("ipc:///tmp/x", "need tcp://"),
        ("tcp://*:x", "need tcp://"),
        ("tcp://*:65535", "above 65535"),
    ],
)
def test_endpoints_without_ports_for_ranks_are_refused(endpoint: str, message: str) -> None:
    with pytest.raises(EndpointError, match=message):
        rank_endpoint(endpoint, 1)
    assert rank_endpoint(endpoint, 0) == endpoint


def test_a_journal_keeps_the_last_batches_and_says_when_it_is_broken() -> None:
    journal = Journal(2)
    for payload in (b"0", b"1", b"2"):
        journal.append(payload)
    assert journal.since(0) == [Frame(1, b"1"), Frame(2, b"2")]
    assert journal.since(2) == [Frame(2, b"2")]
    journal.check()
    journal.next_sequence = 9
    with pytest.raises(BrokenInvariantError):
        journal.check()


def sent(faults: EventFaults, count: int = 6) -> list[list[int]]:
    """Return what goes out at each of `count` batches, a second apart."""
    outlet = FaultyOutlet(faults)
    return [
        [frame.sequence for frame in outlet.push(float(number), Frame(number, b""))]
        for number in range(count)
    ]


def test_without_faults_every_batch_goes_out_at_once() -> None:
    assert sent(EventFaults()) == [[0], [1], [2], [3], [4], [5]]


def test_the_next_batches_are_dropped_and_then_no_more() -> None:
    assert sent(EventFaults(drop_next=2)) == [[], [], [2], [3], [4], [5]]


def test_a_duplicate_follows_its_original() -> None:
    assert sent(EventFaults(duplicate_next=1), 2) == [[0, 0], [1]]


def test_a_reordered_batch_follows_the_one_after_it() -> None:
    assert sent(EventFaults(reorder_next=1, delay_seconds=5.0), 3) == [[], [1, 0], [2]]


def test_a_reordered_batch_that_none_follows_goes_out_late() -> None:
    outlet = FaultyOutlet(EventFaults(reorder_next=1, delay_seconds=5.0))
    assert outlet.push(0.0, Frame(0, b"")) == []
    assert outlet.due == 5.0
    assert outlet.release(4.9) == []
    assert outlet.release(5.0) == [Frame(0, b"")]
    assert outlet.due is None


def test_a_delayed_batch_holds_up_those_behind_it() -> None:
    faults = EventFaults(delay_next=1, delay_seconds=2.5)
    assert sent(faults) == [[], [], [], [0, 1, 2, 3], [4], [5]]


def test_rates_do_what_their_share_says_and_the_same_again() -> None:
    faults = EventFaults(drop=0.25, seed=7)
    once = sent(faults, 4000)
    assert once == sent(faults, 4000)
    assert once != sent(EventFaults(drop=0.25, seed=8), 4000)
    assert 0.2 < sum(not out for out in once) / 4000 < 0.3


def test_one_rate_does_not_change_which_batches_another_meets() -> None:
    dropped = {number for number, out in enumerate(sent(EventFaults(drop=0.3), 500)) if not out}
    both = sent(EventFaults(drop=0.3, duplicate=0.5), 500)
    assert {number for number, out in enumerate(both) if not out} == dropped
    assert any(len(out) == 2 for out in both)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"drop": 1.5}, "events.drop: a number from 0 to 1"),
        ({"drop": "all"}, "events.drop: a number"),
        ({"duplicate": True}, "events.duplicate: a number"),
        ({"drop_next": -1}, "events.drop_next: a whole number from 0"),
        ({"drop_next": 0.5}, "events.drop_next: a whole number"),
        ({"delay_seconds": 1e9}, "events.delay_seconds: a number from 0 to 3600"),
        ({"lose": 1}, "events.lose: is not a field; the fields are delay"),
    ],
)
def test_faults_that_cannot_be_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FaultError, match=message):
        EventFaults().changed(changes)


def test_a_change_leaves_the_other_faults() -> None:
    changed = EventFaults(drop=0.5, seed=3).changed({"delay_next": 2})
    assert changed == EventFaults(drop=0.5, seed=3, delay_next=2)


FATES: list[dict[str, Any]] = [
    *(
        {kind: rate}
        for kind in ("drop", "duplicate", "delay", "reorder")
        for rate in (0.0, 0.5, 1.0)
    ),
    {"drop": 0.3, "duplicate": 0.3, "delay": 0.3, "reorder": 0.3, "seed": 1},
    {"drop_next": 2},
    {"reorder_next": 3, "duplicate_next": 1},
    {"delay_seconds": 0.0},
    {"delay_seconds": 3.0},
]


class Spoiled(RuleBasedStateMachine):
    """Any faults, lives and pauses; a consumer who asks the journal for what it misses."""

    def __init__(self) -> None:
        super().__init__()
        self.journal = Journal(1000)
        self.outlet = FaultyOutlet()
        self.now = 0.0
        self.life = 0
        self.published: list[Frame] = []
        self.received: list[Frame] = []

    @rule(faults=st.sampled_from(FATES))
    def configure(self, faults: dict[str, Any]) -> None:
        self.outlet.configure(self.outlet.faults.changed(faults))

    @rule()
    def publish(self) -> None:
        frame = self.journal.append(f"{self.life}:{self.journal.next_sequence}".encode())
        self.published.append(frame)
        self.received += self.outlet.push(self.now, frame)

    @rule(seconds=st.sampled_from([0.1, 1.0, 10.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.received += self.outlet.release(self.now)

    @rule()
    def restart(self) -> None:
        self.life += 1
        self.journal.begin_life()
        self.outlet.begin_life()
        self.published, self.received = [], []

    @invariant()
    def nothing_is_made_up(self) -> None:
        assert set(self.received) <= set(self.published)

    @invariant()
    def replay_has_the_truth(self) -> None:
        assert self.journal.since(0) == self.published

    @invariant()
    def it_holds_together(self) -> None:
        self.journal.check()
        self.outlet.check()
        assert self.outlet.due is None or self.outlet.due > self.now

    @invariant()
    def all_that_was_not_dropped_arrives_in_the_end(self) -> None:
        counts = self.outlet.counts
        distinct = len(set(self.received)) + self.held_for_the_first_time()
        assert distinct == counts["taken"] - counts["drop"]

    def held_for_the_first_time(self) -> int:
        held = {frame for _, frame in self.outlet._line}
        if self.outlet._overtaken:
            held |= set(self.outlet._overtaken[1])
        return len(held - set(self.received))


TestSpoiled = long_test(Spoiled)
