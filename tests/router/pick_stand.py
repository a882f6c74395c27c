"""A running router, and the calls that tests of picks make."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from tests.router.running_router import running_router
from warmpath.indexer.keys.key import pack_tokens
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc
from warmpath.router.config.schema import Config

QUIET = "[probe]\ninterval-seconds = 0\n"
"""Disables probes, since no server listens at the pods' addresses."""
UNENDING = "[pick]\nprefill-base-seconds = 60\n"
"""Makes predicted prefills so long that none counts as over while a test runs."""


@dataclass
class Stand:
    """A running router and a client of it."""

    address: str
    stub: router_pb2_grpc.RouterStub
    http_address: str = ""
    """The address of its metrics, host:port; empty if it has none."""
    reload: Callable[[Config], Awaitable[None]] | None = None
    """Lets it take over a configuration."""

    async def pick(
        self, prompt: pb.Prompt, *, wait: bool = False, **fields: Any
    ) -> pb.PickResponse:
        """Pick; with `wait`, wait until the router listens."""
        request = pb.PickRequest(prompt=prompt, **fields)
        return await self.stub.Pick(request, timeout=30, wait_for_ready=wait)

    def score(self, text: str) -> "grpc.aio.UnaryUnaryCall[Any, pb.ScoreResponse]":
        """Begin to score a text."""
        prompt = pb.Prompt(model="demo", text=text)
        return self.stub.Score(pb.ScoreRequest(prompt=prompt), timeout=30)  # type: ignore[return-value]

    async def explain(self, prompt: pb.Prompt, **fields: Any) -> pb.ExplainResponse:
        return await self.stub.Explain(pb.ExplainRequest(prompt=prompt, **fields), timeout=30)

    async def report(self, name: str, event: str, **fields: Any) -> bool:
        """Report an event by its name; return whether the booking was known."""
        value = pb.ReportRequest.Event.Value(event)
        request = pb.ReportRequest(booking_id=name, event=value, **fields)
        return (await self.stub.Report(request, timeout=30)).known

    async def decisions(self, **fields: Any) -> Sequence[pb.Decision]:
        request = pb.ListDecisionsRequest(**fields)
        return (await self.stub.ListDecisions(request, timeout=30)).decisions

    async def diagnose(self) -> pb.DiagnoseResponse:
        return await self.stub.Diagnose(pb.DiagnoseRequest(), timeout=30)

    async def pods(self) -> Sequence[pb.Pod]:
        return (await self.stub.ListPods(pb.ListPodsRequest(), timeout=30)).pods

    async def refused(self, call: Awaitable[object]) -> tuple[grpc.StatusCode, str]:
        """Return the status of a call that fails."""
        try:
            await call
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details() or ""
        raise AssertionError("it was answered")


def by_pod(candidates: Iterable[pb.Candidate]) -> dict[str, pb.Candidate]:
    return {one.pod: one for one in candidates}


def ids(length: int = 100, first: int = 100) -> list[int]:
    return list(range(first, first + length))


def prompt(length: int = 100, first: int = 100, **fields: Any) -> pb.Prompt:
    fields.setdefault("model", "demo")
    return pb.Prompt(token_ids_packed=pack_tokens(ids(length, first)), **fields)


def pod(name: str, address: str = "", *, model: str = "demo", **keys: object) -> str:
    """Return a pod's table of the configuration; it has no events unless `keys` has them."""
    table = f'[[pods]]\nid = "{name}"\nmodel = "{model}"\naddress = "{address or name + ":80"}"\n'
    return table + "".join(
        f"{key.replace('_', '-')} = {value!r}\n".replace("'", '"') for key, value in keys.items()
    )


@asynccontextmanager
async def standing(
    folder: Path, tables: str, *, models: str = "", metrics: str = "", **options: Any
) -> AsyncIterator[Stand]:
    """Run a router of one model, `demo`; further `options` are those of `running_router`.

    `tables` are added to its configuration, `models` to the model's table. Its metrics are at `metrics`, host:port.
    """
    tables = f'[[models]]\nname = "demo"\nadapters = ["tuned"]\n{models}\n{tables}'
    async with running_router(folder, tables, metrics=metrics, **options) as (router, channel):
        stub = router_pb2_grpc.RouterStub(channel)
        yield Stand(router.address, stub, router.http_address, router.reload)
