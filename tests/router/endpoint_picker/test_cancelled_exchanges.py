"""Streams that end at any wait, and gateways that are gone at any write, leave no booking behind."""

import asyncio
import math
from typing import Any

import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.router.endpoint_picker.gateway import header_map
from tests.router.pick_calls import MOMENT, Calls, Cancelled, Waits, When
from warmpath.indexer.keys.key import pack_tokens
from warmpath.proto.pb.warmpath.v1 import router_pb2
from warmpath.router.admission.admission import Admission
from warmpath.router.config.schema import EndpointPickerTable
from warmpath.router.ending import Drain
from warmpath.router.endpoint_picker.pick import EndpointPicks
from warmpath.router.endpoint_picker.protocol import BodyMode
from warmpath.router.endpoint_picker.service import EndpointPickerService
from warmpath.router.inference_api.request import InferenceRequest
from warmpath.router.pods.table import PodTable
from warmpath.router.prompt.models import Model, ModelTable
from warmpath.scorer.prefill import PrefillModel

HEADERS = header_map(
    ((":path", "/v1/completions"), (":status", "200"), ("content-type", "text/event-stream"))
)
TOKEN = b'data: {"choices":[{"text":"a"}]}\n\n'


def messages(request: BodyMode, response: BodyMode) -> list[pb.ProcessingRequest]:
    """Return a whole exchange: a body in two pieces, unless it is buffered, and a streamed answer."""
    config = pb.ProtocolConfiguration(request_body_mode=request, response_body_mode=response)
    pieces = [b"{", b"}"] if request is BodyMode.FULL_DUPLEX_STREAMED else [b"{}"]
    told = [
        pb.ProcessingRequest(
            request_headers=pb.HttpHeaders(headers=HEADERS), protocol_config=config
        )
    ]
    for at, piece in enumerate(pieces):
        body = pb.HttpBody(body=piece, end_of_stream=at == len(pieces) - 1)
        told.append(pb.ProcessingRequest(request_body=body))
    told.append(pb.ProcessingRequest(response_headers=pb.HttpHeaders(headers=HEADERS)))
    for at in range(2):
        body = pb.HttpBody(body=TOKEN, end_of_stream=at == 1)
        told.append(pb.ProcessingRequest(response_body=body))
    return told


EXCHANGES = [
    messages(BodyMode.FULL_DUPLEX_STREAMED, BodyMode.FULL_DUPLEX_STREAMED),
    messages(BodyMode.BUFFERED, BodyMode.STREAMED),
]


class Tokens:
    """Reads every request as one of the same token ids."""

    async def read(self, *_: object) -> InferenceRequest:
        tokens = pack_tokens(range(65))
        return InferenceRequest("m", router_pb2.Prompt(token_ids_packed=tokens))


class Call:
    """A stream whose reads and writes wait until a test ends them; writes fail from `gone_at` on."""

    peer = "gateway"
    metadata = ()

    def __init__(self, waits: Waits, told: list[pb.ProcessingRequest], gone_at: float) -> None:
        self._waits = waits
        self._told = [one.SerializeToString() for one in told]
        self._gone_at = gone_at
        self._put: list[bytes] = []
        self.written = 0

    def take(self) -> None:
        """Nothing is known to have come."""

    async def read(self) -> bytes | None:
        await self.drain()
        await self._waits.wait()
        return self._told.pop(0) if self._told else None

    def put(self, message: bytes) -> int:
        self._put.append(message)
        return sum(map(len, self._put))

    async def drain(self) -> None:
        while self._put:
            await self._waits.wait()
            if self.written >= self._gone_at:
                raise asyncio.CancelledError("the stream is closed")
            pb.ProcessingResponse.FromString(self._put.pop(0))
            self.written += 1


class Exchanges(Calls):
    """Exchanges whose waits a test ends."""

    def __init__(self, *, body_seconds: float = 1000.0) -> None:
        super().__init__()
        models = ModelTable()
        models.add(Model("m"), (), ())
        reader: Any = Tokens()
        pods = PodTable(self.parts.pods)
        picks = EndpointPicks(
            self.picks, reader, pods, models, EndpointPickerTable(),
            prefill=PrefillModel(), tokenize_seconds=1.0,
        )  # fmt: skip
        meter: Any = Meter()
        self.meter_of_picks = meter
        self.service_of_picks = EndpointPickerService(
            picks, self.picks.reports, EndpointPickerTable(pick_seconds=1000.0),
            meter=meter, drain=Drain(lambda: 0.0),
            admission=Admission(
                wait_seconds=1.0, soon=self.loop.call_soon, clock=lambda: self.parts.now,
            ),
            most_body_bytes=1000,
        )  # fmt: skip
        self.service_of_picks.body_seconds = body_seconds
        self.begun = 0

    def exchange(
        self, told: list[pb.ProcessingRequest], *, at: int = 0, when: When = "waiting",
        gone_at: float = math.inf,
    ) -> None:  # fmt: skip
        """Begin an exchange, which is cancelled at its `at`-th wait; 0: never."""
        self.begun += 1
        stream: Any = Call(self.waits, told, gone_at)
        call = self.service_of_picks.process(stream)

        async def run() -> None:
            await Cancelled(call, at, when)

        self.running.append(self.loop.create_task(run()))
        self.turns()

    def check_nothing_left(self) -> None:
        self.check_over()
        self.check()
        assert not len(self.parts.picker)
        assert not len(self.parts.bookings)
        # Events may still announce the blocks of requests whose first token has come.
        self.parts.picker.expire(self.parts.now + 60.0)
        assert not [*self.parts.believed.arrivals()]
        assert not self.service_of_picks.streams
        assert not self.service_of_picks.held_bytes
        assert sum(self.meter_of_picks.outcomes.values()) <= self.begun


class Meter:
    def __init__(self) -> None:
        self.outcomes: dict[str, int] = {}

    def answered(self, method: str, code: str, seconds: float, reason: str = "") -> None:
        del method, code, seconds, reason

    def endpoint_picked(self, outcome: str) -> None:
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1


WAITS = 30
"""More waits than an exchange has."""


@pytest.mark.parametrize("told", EXCHANGES)
@pytest.mark.parametrize("when", ["waiting", "answered"])
def test_a_stream_that_ends_at_any_wait_leaves_nothing(
    told: list[pb.ProcessingRequest], when: When
) -> None:
    cancelled = 0
    for at in range(1, WAITS):
        calls = Exchanges()
        calls.exchange(told, at=at, when=when)
        calls.finish()
        calls.check_nothing_left()
        cancelled += calls.cancelled
        calls.close()
    assert 0 < cancelled < WAITS - 1


@pytest.mark.parametrize("told", EXCHANGES)
def test_a_gateway_that_is_gone_at_any_write_leaves_nothing(
    told: list[pb.ProcessingRequest],
) -> None:
    outcomes = set()
    for gone_at in range(8):
        calls = Exchanges()
        calls.exchange(told, gone_at=gone_at)
        calls.finish()
        calls.check_nothing_left()
        outcomes |= set(calls.meter_of_picks.outcomes)
        calls.close()
    assert outcomes == {"picked", "gone"}


@pytest.mark.deep
@pytest.mark.parametrize("when", ["waiting", "answered"])
def test_a_stream_that_ends_while_a_late_body_is_picked_for_leaves_nothing(when: When) -> None:
    outcomes = set()
    for at in range(1, WAITS):
        for step in range(WAITS):
            calls = Exchanges(body_seconds=1.0)
            calls.exchange(EXCHANGES[0], at=at, when=when)
            for _ in range(step):
                calls.go_on()
            calls.pass_time(1.0)
            calls.finish()
            calls.check_nothing_left()
            outcomes |= set(calls.meter_of_picks.outcomes)
            calls.close()
    assert outcomes == {"picked", "gone"}


@settings(max_examples=examples(600), deadline=None)
@given(
    st.sampled_from([MOMENT, 1000.0]),
    st.lists(
        st.tuples(
            st.sampled_from(EXCHANGES), st.integers(0, 6), st.integers(0, WAITS),
            st.sampled_from(["waiting", "answered"]), st.integers(0, 8),
        ),
        min_size=1, max_size=5,
    )
)  # fmt: skip
def test_exchanges_beside_each_other_leave_nothing(
    body_seconds: float, exchanges: list[Any]
) -> None:
    calls = Exchanges(body_seconds=body_seconds)
    for told, shown, at, when, gone_at in exchanges:
        calls.exchange(told[:shown], at=at, when=when, gone_at=gone_at)
        calls.go_on()
        calls.pass_time(MOMENT)
    calls.finish()
    calls.check_nothing_left()
    calls.close()
