"""A gateway that speaks Envoy's external processing over gRPC, and a router that it asks."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import grpc.aio
from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from google.protobuf.struct_pb2 import Struct

from tests.router.pick_stand import QUIET, pod
from tests.router.running_router import TRANSPORT, metrics_of, running_router
from tests.waiting import until
from warmpath.proto.pb.warmpath.v1 import router_pb2, router_pb2_grpc
from warmpath.router.assemble.running import Running
from warmpath.router.endpoint_picker.protocol import (
    DESTINATION,
    NAMESPACE,
    SERVED,
    SERVICE,
    SUBSET,
    SUBSET_NAMESPACE,
    BodyMode,
)
from warmpath.router.tracing.steps import NO_TRACER, Tracer

ONE, TWO = "10.0.0.1:80", "10.0.0.2:80"
PODS = pod("pod-1", ONE) + pod("pod-2", TWO)
IDS = list(range(100, 300))


def completion(**fields: Any) -> bytes:
    return json.dumps({"model": "demo", "prompt": IDS} | fields).encode()


def header_map(headers: Iterable[tuple[str, str]]) -> base_pb2.HeaderMap:
    return base_pb2.HeaderMap(
        headers=[
            base_pb2.HeaderValue(key=key, raw_value=value.encode("latin-1"))
            for key, value in headers
        ]
    )


def metadata(space: str, **fields: Any) -> base_pb2.Metadata:
    found = base_pb2.Metadata()
    struct = Struct()
    struct.update({key.replace("_", "-"): value for key, value in fields.items()})
    found.filter_metadata[space].CopyFrom(struct)
    return found


@dataclass
class Destination:
    endpoints: list[str]
    headers: dict[str, str]
    removed: set[str]


class Conversation:
    def __init__(self, channel: grpc.aio.Channel, **metadata: str) -> None:
        method = channel.stream_stream(
            f"/{SERVICE}/Process",
            request_serializer=pb.ProcessingRequest.SerializeToString,
            response_deserializer=pb.ProcessingResponse.FromString,
        )
        self.call: Any = method(metadata=tuple(metadata.items()), timeout=60)
        self.modes: tuple[BodyMode, BodyMode] | None = None
        self.is_watched = False

    async def tell(self, **fields: Any) -> None:
        await self.call.write(pb.ProcessingRequest(observability_mode=self.is_watched, **fields))

    async def read(self) -> pb.ProcessingResponse:
        got = await self.call.read()
        assert isinstance(got, pb.ProcessingResponse), got
        return got

    async def request(
        self,
        *headers: tuple[str, str],
        path: str = "/v1/completions",
        kind: str = "application/json",
        ends: bool = False,
        subset: list[str] | str | None = None,
    ) -> None:
        fields: dict[str, Any] = {}
        if subset is not None:
            fields["metadata_context"] = metadata(SUBSET_NAMESPACE, **{SUBSET: subset})
        if self.modes is not None:
            fields["protocol_config"] = pb.ProtocolConfiguration(
                request_body_mode=self.modes[0], response_body_mode=self.modes[1]
            )
        whole = ((":method", "POST"), (":path", path), ("content-type", kind), *headers)
        told = pb.HttpHeaders(headers=header_map(whole), end_of_stream=ends)
        await self.tell(request_headers=told, **fields)

    async def body(self, data: bytes, *, ends: bool = True) -> None:
        await self.tell(request_body=pb.HttpBody(body=data, end_of_stream=ends))

    async def destination(self) -> Destination:
        """Return where the request is to go; the header and the metadata must agree."""
        got = await self.read()
        assert got.WhichOneof("response") in ("request_headers", "request_body"), got
        response = (got.request_headers or got.request_body).response
        if got.WhichOneof("response") == "request_body":
            response = got.request_body.response
        headers = {
            one.header.key: one.header.raw_value.decode("latin-1")
            for one in response.header_mutation.set_headers
        }
        told = headers.get(DESTINATION, "")
        space = dict(got.dynamic_metadata).get(NAMESPACE, {})
        assert dict(space).get(DESTINATION, "") == told
        return Destination(
            told.split(",") if told else [], headers, {*response.header_mutation.remove_headers}
        )

    async def passed(self, side: str = "request") -> bytes:
        """Return a body that is sent back, up to its end."""
        whole = b""
        while True:
            got = await self.read()
            assert got.WhichOneof("response") == f"{side}_body", got
            piece = getattr(got, f"{side}_body").response.body_mutation.streamed_response
            whole += piece.body
            if piece.end_of_stream:
                return whole

    async def routed(
        self, body: bytes | None, *headers: tuple[str, str], **fields: Any
    ) -> Destination:
        """Send a whole request; return where it is to go."""
        await self.request(*headers, ends=body is None, **fields)
        if body is not None:
            await self.body(body)
        destination = await self.destination()
        if body is not None:
            assert await self.passed() == body
        return destination

    async def refused(self) -> tuple[int, dict[str, Any], dict[str, str]]:
        """Return the status, the error and the headers of a response in place of an engine's."""
        got = await self.read()
        assert got.WhichOneof("response") == "immediate_response", got
        headers = {
            one.header.key: one.header.raw_value.decode()
            for one in got.immediate_response.headers.set_headers
        }
        error = json.loads(got.immediate_response.body)["error"]
        assert await self.call.read() is grpc.aio.EOF
        assert await self.call.code() == grpc.StatusCode.OK
        return got.immediate_response.status.code, error, headers

    async def answered(
        self, *chunks: bytes, status: str = "200", kind: str = "application/json", served: str = ""
    ) -> dict[str, str]:
        """Send a whole response; return the headers that it gets."""
        fields: dict[str, Any] = {}
        if served:
            fields["metadata_context"] = metadata(NAMESPACE, **{SERVED: served})
        headers = header_map(((":status", status), ("content-type", kind)))
        told = pb.HttpHeaders(headers=headers, end_of_stream=not chunks)
        await self.tell(response_headers=told, **fields)
        got = await self.read()
        mutation = got.response_headers.response.header_mutation
        for at, chunk in enumerate(chunks):
            ends = at == len(chunks) - 1
            await self.tell(response_body=pb.HttpBody(body=chunk, end_of_stream=ends))
        if chunks and (self.modes is None or self.modes[1].sends_back):
            assert await self.passed("response") == b"".join(chunks)
        return {one.header.key: one.header.raw_value.decode() for one in mutation.set_headers}

    async def ended(self) -> grpc.StatusCode:
        """End the exchange; return the status of the stream."""
        await self.call.done_writing()
        assert await self.call.read() is grpc.aio.EOF
        code: grpc.StatusCode = await self.call.code()
        return code


@dataclass
class Gateway:
    """A gateway's connection to a running router."""

    router: Running
    channel: grpc.aio.Channel
    exchanges: list[Conversation] = field(default_factory=list)

    def exchange(self, *modes: BodyMode, **metadata: str) -> Conversation:
        """Begin an exchange; `modes` are those of the request's body and of the response's."""
        one = Conversation(self.channel, **metadata)
        self.exchanges.append(one)
        if modes:
            one.modes = (modes[0], modes[1])
        return one

    async def whole(
        self,
        body: bytes | None,
        answer: bytes,
        *headers: tuple[str, str],
        status: str = "200",
        **fields: Any,
    ) -> tuple[Destination, dict[str, str]]:
        """Make a whole exchange; return where the request is to go, and the response's headers."""
        one = self.exchange()
        destination = await one.routed(body, *headers, **fields)
        told = await one.answered(answer, status=status)
        assert await one.ended() == grpc.StatusCode.OK
        return destination, told

    @property
    def stub(self) -> router_pb2_grpc.RouterStub:
        return router_pb2_grpc.RouterStub(self.channel)

    async def decisions(self) -> list[tuple[str, str]]:
        """Return the state and the pod of each pick, the newest first."""
        request = router_pb2.ListDecisionsRequest()
        listed = (await self.stub.ListDecisions(request, timeout=30)).decisions
        return [(router_pb2.Decision.State.Name(one.state), one.pod) for one in listed]

    async def newest(self) -> router_pb2.Decision:
        request = router_pb2.ListDecisionsRequest(limit=1)
        return (await self.stub.ListDecisions(request, timeout=30)).decisions[0]

    async def metric(self, series: str) -> float:
        """Return the value of a series of the router's metrics, named with its labels; 0 if missing."""
        return (await metrics_of(self.router.http_address)).get(series, 0.0)

    async def until_nothing_is_left(self) -> None:
        """Wait until no booking, stream or held byte is left."""

        async def is_empty() -> bool:
            names = ("bookings", "endpoint_picker_streams", "endpoint_picker_held_bytes")
            return not any([await self.metric(f"warmpath_{name}") for name in names])

        await until(is_empty)

    async def until_it_is(self, series: str, value: float) -> None:
        while await self.metric(series) != value:
            await asyncio.sleep(0.01)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for one in self.exchanges:
            one.call.cancel()
        await self.until_nothing_is_left()


@asynccontextmanager
async def asking(
    folder: Path,
    *,
    picker: str = "",
    tables: str = QUIET + PODS,
    model: str = "",
    transport: str = TRANSPORT,
    tracer: Tracer = NO_TRACER,
) -> AsyncIterator[Gateway]:
    """Run a router of the models `demo` and `empty`, which has no pods, and a gateway that asks it.

    `picker` has keys of [endpoint-picker], `model` those of the model `demo`. At the end nothing may be
    left of any exchange.
    """
    if "pick-seconds" not in picker:
        # The first chat starts a process, which takes long where the machine is busy.
        picker = f"pick-seconds = 60\n{picker}"
    config = (
        f'[endpoint-picker]\n{picker}\n[[models]]\nname = "demo"\nadapters = ["tuned"]\n{model}\n'
        f'[[models]]\nname = "empty"\n{tables}'
    )
    async with (
        running_router(folder, config, transport=transport, tracer=tracer) as (router, channel),
        Gateway(router, channel) as gateway,
    ):
        yield gateway
