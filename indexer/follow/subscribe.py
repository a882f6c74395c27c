"""The sockets of one rank: its live events (ZeroMQ SUB), and the replays that its stream wants (DEALER).

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
from warmpath.indexer.follow.dial import (
    CONNECTED,
    END,
    GONE,
    answered,
    dial,
    is_sequence,
    monitored,
    name_in,
    replay_frames,
)
from warmpath.indexer.follow.instance import Patience
from warmpath.indexer.follow.stream_source import SILENT_SECONDS, RankIngest
from warmpath.indexer.stream.replay import AskReplay

log = logging.getLogger(__name__)

_monitors = count()
"""Numbers for monitors' addresses: an address stays in use for a while after its socket closed."""

HEARTBEAT_MS = 500

RETRY_SECONDS = 1.0
"""Pause after an error of the sockets themselves, or of a host's name."""

NAME_SECONDS = 5.0
"""How long the addresses of a host's name are tried before it is resolved again."""


class Subscriber:
    """Feeds one rank's ingestion from its engine's sockets until it is cancelled.

    `events` and `replay` are the endpoints. It requests one replay at a time; a new one replaces the one
    that waits.
    """

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
        self._replay = replay
        self._patience = patience
        self._problems: set[str] = set()
        """The problems with the endpoint that were logged since it was last connected."""
        self._asked: asyncio.Queue[AskReplay] = asyncio.Queue()
        self._stirred = asyncio.Event()
        """Set when a part of an answer may have arrived, and when another replay is asked for."""
        if replay:
            rank.ask = self._ask

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            if self._replay:
                tasks.create_task(self._carry_out_replays())
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
                async with asyncio.timeout(NAME_SECONDS if name_in(self._events) else None):
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

    # Replays

    def _ask(self, asked: AskReplay) -> None:
        self._asked.put_nowait(asked)
        self._stirred.set()

    async def _carry_out_replays(self) -> None:
        while True:
            asked = await self._newest()
            if not self._is_wanted(asked):
                continue
            try:
                await self._carry_out(asked)
            except TimeoutError:
                reason = f"no answer within {self._patience.replay_seconds:g} s"
                self._rank.replay_failed(asked.ticket, reason)
            except (OSError, zmq.ZMQError) as error:
                self._rank.replay_failed(asked.ticket, f"{self._replay}: {error}")

    async def _newest(self) -> AskReplay:
        """Return the newest replay that was asked for, once its delay is over."""
        asked = await self._asked.get()
        while True:
            while not self._asked.empty():
                asked = self._asked.get_nowait()
            if not asked.delay:
                return asked
            try:
                async with asyncio.timeout(asked.delay):
                    asked = await self._asked.get()
            except TimeoutError:
                return asked

    def _is_wanted(self, asked: AskReplay) -> bool:
        return self._rank.stream.wants(asked.ticket)

    async def _carry_out(self, asked: AskReplay) -> None:
        # One socket a request: answers to an abandoned request die with it.
        with zmq.Socket(self._context, zmq.DEALER) as dealer:
            dealer.setsockopt(zmq.LINGER, 0)
            # The engine's ROUTER socket leaves out messages for which a bounded queue has no room. So
            # the queue has no bound; it is read ahead, and closed where too much waits.
            dealer.setsockopt(zmq.RCVHWM, 0)
            dealer.setsockopt(zmq.MAXMSGSIZE, self._patience.max_frame_bytes)
            # A host's name may have two addresses, of which one answers: only that one is asked.
            dealer.setsockopt(zmq.IMMEDIATE, 1)
            await dial(dealer, self._replay)
            backlog = Backlog(self._rank.pending_bytes)
            loop = asyncio.get_running_loop()
            loop.add_reader(dealer.FD, self._stirred.set)
            try:
                await self._take_answer(asked, dealer, backlog)
            finally:
                loop.remove_reader(dealer.FD)
        while backlog and self._is_wanted(asked):
            self._take_replayed(asked, backlog.take())
            await asyncio.sleep(0)
        if self._is_wanted(asked):
            most = self._rank.pending_bytes
            reason = f"more than {most} bytes of the answer waited"
            self._rank.replay_failed(asked.ticket, reason)

    async def _take_answer(
        self, asked: AskReplay, dealer: "zmq.Socket[bytes]", backlog: Backlog
    ) -> None:
        """Take an answer until it is not wanted any more, as at its end, or the backlog is full."""
        request = [b"", asked.start.to_bytes(8, "big")]
        async with asyncio.timeout(self._patience.replay_seconds):
            while self._is_wanted(asked) and not _sent(dealer, request):
                await self._stirred.wait()
                self._stirred.clear()
        while self._is_wanted(asked):
            self._stirred.clear()
            _read_ahead(dealer, backlog)
            if backlog.is_full:
                return
            if backlog:
                self._take_replayed(asked, backlog.take())
                await asyncio.sleep(0)
            else:
                async with asyncio.timeout(self._patience.replay_seconds):
                    await self._stirred.wait()

    def _take_replayed(self, asked: AskReplay, messages: list[list[bytes]]) -> None:
        """Take messages of an answer, up to the first after which another replay is asked for."""
        for message in messages:
            answer = replay_frames(message)
            if answer is None:
                problem = "a replay's message is not [topic,] sequence below 2^63, payload"
                self._rank.frame_malformed(problem)
                continue
            _, sequence, payload = answer
            if sequence == END:
                self._rank.replay_ended(asked.ticket)
            else:
                number = int.from_bytes(sequence, "big")
                self._rank.replayed(asked.ticket, number, payload)
            if not self._is_wanted(asked):
                return


def _frame(message: list[bytes]) -> tuple[str, int, bytes] | None:
    """Return a message's topic, sequence and payload; None where it is not a frame."""
    if len(message) == 3 and is_sequence(message[1]):
        topic, sequence, payload = message
        return topic.decode("utf-8", "replace"), int.from_bytes(sequence, "big"), payload
    return None


def _sent(dealer: "zmq.Socket[bytes]", request: list[bytes]) -> bool:
    """Send a request if the engine is connected; return whether it is."""
    try:
        dealer.send_multipart(request, zmq.NOBLOCK)
    except zmq.Again:
        return False
    return True


def _read_ahead(dealer: "zmq.Socket[bytes]", backlog: Backlog) -> None:
    """Read arrived messages of an answer, until `READ_BYTES` are read or the backlog is full."""
    size = 0
    while size < READ_BYTES and not backlog.is_full:
        messages, taken = drain(dealer)
        if not messages:
            return
        backlog.add(messages, taken)
        size += taken
