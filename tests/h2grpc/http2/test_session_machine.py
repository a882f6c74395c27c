"""A connection against a model: any order of messages, windows, pauses, resets, deadlines and ends.

Any bytes of a client come to nothing but the end of its connection: `make fuzz` tries far more.
"""

import asyncio
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.examples import examples
from tests.fuzz.http2_input import PREFACED, RAW, SEEDS, attack
from tests.h2grpc.served import MISSING
from tests.h2grpc.stand import ClientStand
from warmpath.h2grpc.framing import framed
from warmpath.h2grpc.http2 import library as lib
from warmpath.h2grpc.http2.limits import Http2Limits
from warmpath.h2grpc.method import Method, Refusal, RefusedError

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

STREAMS = 8
MOST = 100_000
SIZES = st.one_of(st.integers(0, 10), st.sampled_from([16_379, 65_530, 65_531, MOST]))
WINDOWS = st.sampled_from([0, 1, 100, 65_535, 1 << 20])
CODES = {"finish": b"0", "abort": b"9"}


class Told:
    """A handler that follows the test's orders, and a record of what it has seen."""

    def __init__(self) -> None:
        self.orders: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()
        self.read: list[bytes] = []
        self.written: list[bytes] = []
        self.sent: list[bytes] = []
        """Messages of the client that are whole."""
        self.end = ""
        """The last order, if it was to end."""
        self.is_unsure = False
        """Whether the client, a deadline or the server's end may have come between."""
        self.has_ended = False
        """Whether the client has sent its last message."""


class Machine(RuleBasedStateMachine):
    stand: ClientStand | None = None

    @initialize(window=WINDOWS)
    def connect(self, window: int) -> None:
        self.told: dict[int, Told] = {}
        self.named: dict[bytes, Told] = {}
        self.is_paused = False
        limits = Http2Limits(
            streams=STREAMS,
            message_bytes=MOST,
            control_frames_per_second=10**6,
            resets_per_second=10**6,
        )
        self.stand = ClientStand({"/t.T/Told": Method(self._handler)}, limits, window=window)
        self.loop, self.client = self.stand.loop, self.stand.client
        self.connection, self.socket = self.stand.connection, self.stand.socket

    @precondition(lambda self: self.socket.is_closing())
    @rule(window=WINDOWS)
    def connect_again(self, window: int) -> None:
        self.teardown()
        self.connect(window)

    async def _handler(self, call: Any) -> None:
        metadata = dict(call.metadata)
        told = self.named[metadata["name"].encode()]
        while True:
            order, payload = await told.orders.get()
            if order == "read":
                message = await call.read()
                if message is not None:
                    told.read.append(message)
            elif order == "write":
                told.written.append(payload)
                await call.write(payload)
            elif order == "finish":
                return
            elif order == "abort":
                raise RefusedError(Refusal(grpc.StatusCode.FAILED_PRECONDITION, "told to"))

    @property
    def open(self) -> list[int]:
        """The streams whose end the client has not seen."""
        return [one for one, request in self.client.requests.items() if request.closed is None]

    def _pick(self, data: st.DataObject) -> tuple[int, Told]:
        stream = data.draw(st.sampled_from(self.open), label="stream")
        return stream, self.told[stream]

    is_connected = precondition(lambda self: not self.socket.is_closing())
    has_open = precondition(lambda self: self.open and not self.socket.is_closing())

    @is_connected
    @precondition(lambda self: len(self.open) < STREAMS)
    @rule(seconds=st.sampled_from([None, 5, 50]))
    def call(self, seconds: int | None) -> None:
        name = b"%d" % len(self.named)
        told = self.named[name] = Told()
        more = [(b"name", name)]
        if seconds:
            more.append((b"grpc-timeout", b"%dS" % seconds))
        self.told[self.client.begin(b"/t.T/Told", *more)] = told
        self.stand.carry()

    @has_open
    @rule(data=st.data(), size=SIZES, cut=st.integers(0, 40))
    def message(self, data: st.DataObject, size: int, cut: int) -> None:
        stream, told = self._pick(data)
        if told.has_ended:
            return
        payload = bytes([len(told.sent) % 256]) * size
        told.sent.append(payload)
        raw = framed(payload)
        at = data.draw(st.integers(0, len(raw)), label="at")
        for part in (raw[:at], raw[at:]):
            self.client.put(stream, part)
            self.stand.carry(first=cut)

    @has_open
    @rule(data=st.data())
    def half_close(self, data: st.DataObject) -> None:
        stream, told = self._pick(data)
        told.has_ended = True
        self.client.put(stream, b"", is_last=True)
        self.stand.carry()

    @has_open
    @rule(data=st.data(), order=st.sampled_from(["read", "write"]), size=SIZES)
    def order(self, data: st.DataObject, order: str, size: int) -> None:
        _, told = self._pick(data)
        if told.end:
            return
        self.loop.turn(lambda: told.orders.put_nowait((order, bytes([size % 251]) * size)))
        self.stand.carry()

    @has_open
    @rule(data=st.data(), order=st.sampled_from(["finish", "abort"]))
    def end(self, data: st.DataObject, order: str) -> None:
        _, told = self._pick(data)
        if not told.end:
            told.end = order
            self.loop.turn(lambda: told.orders.put_nowait((order, b"")))
            self.stand.carry()

    @has_open
    @rule(data=st.data())
    def reset(self, data: st.DataObject) -> None:
        stream, told = self._pick(data)
        told.is_unsure = True
        self.client.reset(stream)
        self.stand.carry()

    @has_open
    @rule(data=st.data(), size=st.one_of(st.integers(1, 100), st.just(1 << 20)))
    def consume(self, data: st.DataObject, size: int) -> None:
        stream, _ = self._pick(data)
        self.client.consume(stream, size)
        self.stand.carry()

    @is_connected
    @rule(size=st.sampled_from([0, 1, 1000, 65_535, 1 << 20]))
    def set_window(self, size: int) -> None:
        self.client.set_window(size)
        self.stand.carry()

    @is_connected
    @rule()
    def ping(self) -> None:
        self.client.ping()
        self.stand.carry()

    @is_connected
    @rule()
    def pause(self) -> None:
        self.is_paused = not self.is_paused
        act = self.connection.pause_writing if self.is_paused else self.connection.resume_writing
        self.loop.turn(act)
        self.stand.carry()

    @is_connected
    @rule(seconds=st.integers(1, 9))
    def pass_time(self, seconds: int) -> None:
        """Let time pass, with its looks; calls whose deadline passes are ended by the server."""
        self._unsure()
        self.loop.pass_time(seconds)
        self.loop.turn(lambda: self.connection.look(self.loop.now))
        self.stand.carry()

    def _unsure(self) -> None:
        for told in self.told.values():
            told.is_unsure = True

    @is_connected
    @precondition(lambda self: len(self.told) > 3)
    @rule(how=st.sampled_from(["lose", "terminate", "cut off"]))
    def end_connection(self, how: str) -> None:
        self._unsure()
        if how == "lose":
            self.loop.turn(self.socket.lose)
        elif how == "terminate":
            self.loop.turn(self.connection.terminate)
        else:
            self.loop.turn(lambda: self.loop.create_task(self.connection.cut_off()))
        self.stand.carry()

    @invariant()
    def messages_arrive_whole_and_in_order(self) -> None:
        for stream, told in self.told.items():
            request = self.client.requests[stream]
            sent = b"".join(framed(one) for one in told.written)
            assert sent.startswith(request.answer)
            assert told.read == told.sent[: len(told.read)]
            status = request.headers.get("grpc-status")
            if status == b"0" or (status and not told.is_unsure):
                assert request.answer == sent
                assert status == CODES[told.end]

    @invariant()
    def the_server_keeps_to_the_protocol(self) -> None:
        assert self.client.problems == []
        assert self.loop.errors == []
        for request in self.client.requests.values():
            assert request.closed in {None, lib.NO_ERROR, lib.CANCEL, 7}

    @invariant()
    def counts_are_right(self) -> None:
        if self.socket.is_lost:
            return
        session = self.connection.session
        bodies = session._bodies.values()
        assert session.unsent == sum(one.unsent for one in bodies)
        for body in bodies:
            assert body.unsent == body._left + sum(map(len, body._queue or ()))
        assert set(session._bodies) <= session._open
        assert len(self.connection.calls) <= STREAMS
        if not self.is_paused and not self.socket.is_closing():
            # Nothing is under way: both sides agree on what is open.
            assert set(self.connection.calls._of) <= set(self.open)

    def teardown(self) -> None:
        if self.stand is not None:
            self.stand.close()


Machine.TestCase.settings = settings(
    max_examples=examples(300, desk=25), stateful_step_count=60, deadline=None
)
TestMachine = Machine.TestCase


@pytest.mark.parametrize("seed", range(len(SEEDS)))
def test_each_seed_of_the_fuzzer_is_survived(seed: int) -> None:
    attack(SEEDS[seed])


@given(st.binary(max_size=200))
def test_any_acts_of_a_client_are_survived(data: bytes) -> None:
    attack(bytes([PREFACED]) + data)


@given(st.sampled_from([RAW, RAW | PREFACED]), st.binary(max_size=300))
def test_any_bytes_of_a_client_are_survived(kind: int, data: bytes) -> None:
    attack(bytes([kind]) + data)


@given(st.sampled_from(SEEDS), st.lists(st.tuples(st.integers(1, 400), st.binary(max_size=5))))
def test_changed_bytes_of_a_client_are_survived(
    seed: bytes, changes: list[tuple[int, bytes]]
) -> None:
    for at, new in changes:
        seed = seed[:at] + new + seed[at + len(new) :]
    attack(seed)
