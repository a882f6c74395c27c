"""Serves CacheWatch: each watcher gets a snapshot or what it missed, and then every delta."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from indexer.message import read_message
from indexer.pb.warmpath.watch.v1 import cache_watch_pb2 as pb
from indexer.pod_cache import PodCache

log = logging.getLogger(__name__)

SERVICE = pb.DESCRIPTOR.services_by_name["CacheWatch"]

TAKEN_AT_ONCE = 64
"""Deltas that a watcher keeps from the journal's bound while they are sent."""


class WatchServer:
    """Serves one pod's cache to routers.

    `keyspace` is the fingerprint of the pod's keys; at most `max_watchers` are served at once;
    `heartbeat` is the longest silence, seconds.
    """

    def __init__(
        self, cache: PodCache, *, keyspace: str, max_watchers: int, heartbeat: float
    ) -> None:
        self.watchers = 0
        self.snapshots = 0
        self.cut_off = 0
        self._cache = cache
        self._keyspace = keyspace
        self._max_watchers = max_watchers
        self._heartbeat = heartbeat
        self._news = asyncio.Event()

    def tell(self) -> None:
        """Wake the watchers: the journal has grown."""
        self._news.set()
        self._news = asyncio.Event()

    def handler(self) -> grpc.GenericRpcHandler:
        """Return what a gRPC server answers by. It takes bytes: gRPC logs tracebacks of bad requests."""
        watch: Any = grpc.unary_stream_rpc_method_handler(
            self.Watch, response_serializer=pb.WatchResponse.SerializeToString
        )
        return grpc.method_handlers_generic_handler(SERVICE.full_name, {"Watch": watch})

    async def Watch(  # noqa: N802  the contract's name
        self, raw: bytes, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.WatchResponse]:
        """Serve one watcher until it leaves or falls behind."""
        try:
            request = read_message(pb.WatchRequest, raw)
        except ValueError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "request: is no WatchRequest")
        if request.keyspace != self._keyspace:
            problem = (
                "keyspace: router and publisher differ in the model's name or in the hash seed "
                "(index.hash-seed of the router, --model and --hash-seed of the publisher)"
            )
            log.warning("refused %s: %s", context.peer(), problem)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, problem)
        if self.watchers >= self._max_watchers:
            problem = f"{self._max_watchers} watchers are served already (--max-watchers)"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, problem)
        self.watchers += 1
        try:
            async for response in self._watch(request, context):
                yield response
        finally:
            self.watchers -= 1

    async def _watch(
        self, request: pb.WatchRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.WatchResponse]:
        cache, journal = self._cache, self._cache.journal
        cache.collect()
        resumes = journal.reaches(request.epoch, request.sequence)
        position = request.sequence if resumes else journal.sequence
        hello = pb.Hello(
            epoch=journal.epoch, snapshot=not resumes, pod=cache.pod, ranks=len(cache.ranks)
        )
        yield pb.WatchResponse(hello=hello)
        if not resumes:
            self.snapshots += 1
            for response in cache.snapshot():
                if response.HasField("end"):
                    position = response.end.sequence
                yield response
        while True:
            news = self._news
            deltas = journal.after(position, TAKEN_AT_ONCE)
            if deltas is None:
                self.cut_off += 1
                problem = "the watcher fell behind the journal; come back for a snapshot"
                await context.abort(grpc.StatusCode.OUT_OF_RANGE, problem)
            for delta in deltas:
                yield pb.WatchResponse(delta=delta)
                position = delta.sequence
            if not deltas:
                try:
                    async with asyncio.timeout(self._heartbeat):
                        await news.wait()
                except TimeoutError:
                    yield pb.WatchResponse(heartbeat=pb.Heartbeat())
