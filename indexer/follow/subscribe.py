"""The socket of one rank's live events (ZeroMQ SUB); `indexer.follow.replays` has that of its replays.

Protocol: `ZmqEventPublisher` in `vllm/distributed/kv_events.py`. A message that is not a frame is
counted and dropped; the subscriber goes on.
"""

import asyncio
import logging
from itertools import count
from typing import Any

import zmq
import zmq.asyncio

from warmpath.indexer.follow.backlog import (
    MOST_BYTES,
    MOST_MESSAGES,
    READ_BYTES,
    READ_MESSAGES,
    Backlog,
    drain,
)
from warmpath.indexer.follow.dial import CONNECTED, GONE, answered, dial, is_named, monitored
from warmpath.indexer.follow.instance import Patience
from warmpath.indexer.follow.replays import Replays
from warmpath.indexer.follow.stream_source import SILENT_SECONDS, RankIngest
from warmpath.indexer.follow.tap import is_sequence

log = logging.getLogger(__name__)

_monitors = count()
"""Numbers for monitors' addresses: an address stays in use for a while after its socket closed."""

HEARTBEAT_MS = 500

RETRY_SECONDS = 1.0
"""Pause after an error of the sockets themselves, or of a host's name."""

NAME_SECONDS = 5.0
"""How long the addresses of a host's name are tried before it is resolved again."""


class Subscriber:
    """Feeds one rank's ingestion from its engine's sockets until it is cancelled."""

    def __init__(
        self,
        rank: RankIngest,
        context: zmq.asyncio.Context,
        *,
        events: str,
        replay: str,
        patience: Patience,
    ) -> None:
        self._rank = rank
        self._context = context
        self._events = events
        self._replays = Replays(rank, context, replay, patience) if replay else None
        self._patience = patience
        self._problems: set[str] = set()
        """The problems with the endpoint that were logged since it was last connected."""

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            if self._replays:
                tasks.create_task(self._replays.run())
            while True:
                try:
                    await self._follow_once()
                except (OSError, zmq.ZMQError) as error:
                    self._say(f"events: {self._events}: {error}")
                    self._rank.disconnected()
                    await asyncio.sleep(RETRY_SECONDS)

    def _say(self, problem: str) -> None:
        if problem not in self._problems:
            self._problems.add(problem)
            log.error("pod %s rank %d: %s", self._rank.pod, self._rank.number, problem)

    async def _follow_once(self) -> None:
        """Follow one connection from its making to its end.

        Each connection has its own socket: batches that an old one has queued would otherwise arrive
        after the new one's replay, and nothing would distinguish them from new batches.
        """
        live = zmq.Socket(self._context, zmq.SUB)
        try:
            live.setsockopt(zmq.LINGER, 0)
            # With heartbeats, a bounded queue can end the process (libzmq issue 3937: an assertion, if a
            # connection is lost while its queue is full). So the queue has no bound. It is read faster
            # than it is followed; if even so it is never empty, it is closed with all that it holds
            # (`_receive`).
            live.setsockopt(zmq.RCVHWM, 0)
            live.setsockopt(zmq.MAXMSGSIZE, self._patience.max_frame_bytes)
            pause_ms = max(1, round(self._patience.reconnect_seconds * 1000))
            live.setsockopt(zmq.RECONNECT_IVL, pause_ms)
            # A vanished host sends no FIN; heartbeats find that the connection is dead.
            live.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
            live.setsockopt(zmq.HEARTBEAT_TIMEOUT, round(SILENT_SECONDS * 1000) - HEARTBEAT_MS)
            live.setsockopt_string(zmq.SUBSCRIBE, self._rank.source.topic)
            await self._follow_socket(live)
        finally:
            live.close(linger=0)

    async def _follow_socket(self, live: "zmq.Socket[bytes]") -> None:
        monitor = self._monitor(live)
        try:
            places = await dial(live, self._events)
            try:
                async with asyncio.timeout(NAME_SECONDS if is_named(self._events) else None):
                    place = await answered(live, monitor, places)
            except TimeoutError:
                return
            self._problems.clear()
            self._rank.connected()
            async with asyncio.TaskGroup() as tasks:
                receiving = tasks.create_task(self._receive(live))
                gone = tasks.create_task(monitored(GONE, monitor, (place,)))
                await asyncio.wait((receiving, gone), return_when=asyncio.FIRST_COMPLETED)
                receiving.cancel()
                gone.cancel()
            self._rank.disconnected()
        finally:
            live.disable_monitor()
            monitor.close(linger=0)

    def _monitor(self, live: "zmq.Socket[bytes]") -> Any:
        address = f"inproc://monitor-{next(_monitors)}"
        live.monitor(address, CONNECTED | GONE)
        monitor = self._context.socket(zmq.PAIR)
        monitor.linger = 0
        monitor.connect(address)
        return monitor

    async def _receive(self, live: "zmq.Socket[bytes]") -> None:
        """Take messages as they arrive, many at a time: each wake-up costs as much as ten of them.

        Return if messages come for so long without a pause that ZeroMQ may hold any number of them.
        """
        loop = asyncio.get_running_loop()
        arrived = asyncio.Event()
        backlog = Backlog(self._rank.pending_bytes)
        # The descriptor is edge-triggered: it signals new messages once, so all must be read before the
        # next wait.
        loop.add_reader(live.FD, arrived.set)
        try:
            while True:
                arrived.clear()
                self._read(live, backlog)
                if backlog.is_endless(READ_BYTES):
                    source = self._rank.source
                    log.warning(
                        "pod %s rank %d: its events come faster than they are read: connecting again",
                        source.pod, source.rank,
                    )  # fmt: skip
                    return
                if backlog:
                    self._take(backlog.take())
                    await asyncio.sleep(0)
                else:
                    await arrived.wait()
        finally:
            loop.remove_reader(live.FD)

    def _read(self, live: "zmq.Socket[bytes]", backlog: Backlog) -> None:
        """Read arrived messages up to `READ_BYTES`; drop waiting ones if the backlog has no room."""
        let_go = read = size = 0
        while read < READ_MESSAGES and size < READ_BYTES:
            messages, taken = drain(live)
            if not messages:
                backlog.emptied()
                break
            let_go += backlog.put(messages, taken)
            is_last = len(messages) < MOST_MESSAGES and taken < MOST_BYTES
            if (newest := _frame(messages[-1])) is not None:
                topic, sequence, _ = newest
                self._rank.received(topic, sequence, is_all=is_last and not read)
            if is_last:
                backlog.emptied()
                break
            read += len(messages)
            size += taken
        if let_go:
            self._rank.overflowed(let_go)

    def _take(self, messages: list[list[bytes]]) -> None:
        frames = []
        for message in messages:
            frame = _frame(message)
            if frame is not None:
                frames.append(frame)
                continue
            self._rank.live_many(frames)
            frames = []
            problem = "a message is not a topic, an 8-byte sequence below 2^63 and a payload"
            self._rank.frame_malformed(problem)
        self._rank.live_many(frames)


def _frame(message: list[bytes]) -> tuple[str, int, bytes] | None:
    """Return a message's topic, sequence and payload; None where it is not a frame."""
    if len(message) == 3 and is_sequence(message[1]):
        topic, sequence, payload = message
        return topic.decode("utf-8", "replace"), int.from_bytes(sequence, "big"), payload
    return None
