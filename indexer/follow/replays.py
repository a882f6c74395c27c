"""The replays of one rank's events: carries out what its stream asks for, over ZeroMQ DEALER sockets.

Protocol: the replay socket of `ZmqEventPublisher` in `vllm/distributed/kv_events.py`.
"""

import asyncio

import zmq
import zmq.asyncio

from warmpath.indexer.follow.backlog import READ_BYTES, Backlog, drain
from warmpath.indexer.follow.dial import dial
from warmpath.indexer.follow.instance import Patience
from warmpath.indexer.follow.stream_source import RankIngest
from warmpath.indexer.follow.tap import END, replay_frames
from warmpath.indexer.stream.replay import AskReplay


class Replays:
    """Requests replays from one rank's engine, one at a time; a new one replaces the one that waits."""

    def __init__(
        self, rank: RankIngest, context: zmq.asyncio.Context, endpoint: str, patience: Patience
    ) -> None:
        self._rank = rank
        self._context = context
        self._endpoint = endpoint
        self._wait_seconds = patience.replay_seconds
        self._max_bytes = patience.max_frame_bytes
        self._asked: asyncio.Queue[AskReplay] = asyncio.Queue()
        self._stirred = asyncio.Event()
        """Set when a part of an answer may have arrived, and when another replay is asked for."""

        rank.ask = self._ask

    def _ask(self, asked: AskReplay) -> None:
        self._asked.put_nowait(asked)
        self._stirred.set()

    async def run(self) -> None:
        while True:
            asked = await self._newest()
            if not self._is_wanted(asked):
                continue
            try:
                await self._carry_out(asked)
            except TimeoutError:
                reason = f"no answer within {self._wait_seconds:g} s"
                self._rank.replay_failed(asked.ticket, reason)
            except (OSError, zmq.ZMQError) as error:
                self._rank.replay_failed(asked.ticket, f"{self._endpoint}: {error}")

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
            dealer.setsockopt(zmq.MAXMSGSIZE, self._max_bytes)
            # A host's name may have two addresses, of which one answers: only that one is asked.
            dealer.setsockopt(zmq.IMMEDIATE, 1)
            await dial(dealer, self._endpoint)
            backlog = Backlog(self._rank.pending_bytes)
            loop = asyncio.get_running_loop()
            loop.add_reader(dealer.FD, self._stirred.set)
            try:
                await self._take_answer(asked, dealer, backlog)
            finally:
                loop.remove_reader(dealer.FD)
        while backlog and self._is_wanted(asked):
            self._take(asked, backlog.take())
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
        async with asyncio.timeout(self._wait_seconds):
            while self._is_wanted(asked) and not _sent(dealer, request):
                await self._stirred.wait()
                self._stirred.clear()
        while self._is_wanted(asked):
            self._stirred.clear()
            _read_ahead(dealer, backlog)
            if backlog.is_full:
                return
            if backlog:
                self._take(asked, backlog.take())
                await asyncio.sleep(0)
            else:
                async with asyncio.timeout(self._wait_seconds):
                    await self._stirred.wait()

    def _take(self, asked: AskReplay, messages: list[list[bytes]]) -> None:
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
