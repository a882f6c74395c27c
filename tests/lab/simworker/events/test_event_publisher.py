"""The event stream's sockets: numbering, live frames, both forms of replay, and ports of ranks."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import zmq
import zmq.asyncio

from tests.recordings import VLLM_EVENTS
from warmpath.lab.simworker.engine import BrokenInvariantError
from warmpath.lab.simworker.events.faulty_outlet import EventFaults, FaultyOutlet, Frame
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
