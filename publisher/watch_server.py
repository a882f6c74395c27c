"""Serves CacheWatch: each watcher gets a snapshot or the deltas it missed, and then every new delta."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import grpc
import grpc.aio

from warmpath.indexer.watch.pod_cache import PodCache
from warmpath.process.bytes import read_message
from warmpath.process.listener import Place, Places, State
from warmpath.process.tls import names as names_of
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2 as pb

log = logging.getLogger(__name__)

SERVICE = pb.DESCRIPTOR.services_by_name["CacheWatch"]

TAKEN_AT_ONCE = 64
"""Deltas taken from the journal at once; until they are sent they stay in memory beyond its bound."""
FAREWELL_SECONDS = 1.0
"""The longest wait for a watcher to take its stream's end; one that reads nothing never takes it."""


YIELDS = "the place goes to a client that has fewer (--max-watchers)"


class WatchServer:
    """Serves one pod's cache to routers, to at most `most` watchers at once.

    One client may have all places. Where none is left, a client that has at least two fewer than
    another takes one of the other's (`process.listener`), so no client keeps others out.

    `keyspace` is the fingerprint of the pod's keys; `heartbeat` is the longest silence, in seconds. A
    watcher that lets a message wait for `slow_seconds` is ended; its router then asks for a snapshot.
    `names` are those of routers' certificates, if not every router is allowed.
    """

    def __init__(
        self,
        cache: PodCache,
        *,
        keyspace: str,
        most: int,
        heartbeat: float,
        slow_seconds: float,
        names: Sequence[str] = (),
    ) -> None:
        self.places = Places(most)
        self.snapshots = 0
        self.yielded = 0
        """Watchers that were ended so that another client gets their place."""
        self.cut_off = 0
        self.slow = 0
        """Watchers that were ended because they did not read."""
        self._cache = cache
        self._keyspace = keyspace
        self._heartbeat = heartbeat
        self._slow_seconds = slow_seconds
        self._names = names
        self._news = asyncio.Event()

    def wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the gRPC handler. It takes bytes, since gRPC would log tracebacks of bad requests."""
        watch: Any = grpc.unary_stream_rpc_method_handler(
            self.Watch, response_serializer=pb.WatchResponse.SerializeToString
        )
        return grpc.method_handlers_generic_handler(SERVICE.full_name, {"Watch": watch})

    # `Watch` writes and does not yield: a generator cannot know whether the client took a message.
    async def Watch(  # noqa: N802  the contract's name
        self, raw: bytes, context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        client = _client(context)
        if not is_named(context.auth_context(), self._names):
            problem = (
                "no name in the certificate is one of those that may watch (--tls-client-name)"
            )
            log.warning("%s: refused a watcher: %s", client, problem)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, problem)
        try:
            request = read_message(pb.WatchRequest, raw)
        except ValueError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "request: not a WatchRequest")
        if request.keyspace != self._keyspace:
            problem = (
                "keyspace: router and publisher differ in the model's name or in the hash seed "
                "(index.hash-seed of the router, --model and --hash-seed of the publisher)"
            )
            log.warning("%s: refused a watcher: %s", client, problem)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, problem)
        asked: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        place = self.places.enter(client, partial(self._yield, asked))
        if place is None:
            problem = f"{len(self.places)} watchers are served already (--max-watchers)"
            log.warning("%s: refused a watcher: %s", client, problem)
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, problem)
        place.becomes(State.BUSY)
        serving = asyncio.create_task(self._serve(request, context, place))
        try:
            await asyncio.wait((serving, asked), return_when=asyncio.FIRST_COMPLETED)
            reason = await serving if serving.done() else asked.result()
            serving.cancel()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FAREWELL_SECONDS):
                    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
        finally:
            serving.cancel()
            place.leave()

    def _yield(self, asked: asyncio.Future[str]) -> None:
        self.yielded += 1
        asked.set_result(YIELDS)

    async def _serve(
        self, request: pb.WatchRequest, context: grpc.aio.ServicerContext[Any, Any], place: Place
    ) -> str:
        async for response in self._watch(request, context):
            place.stalls(is_stalled=True)
            try:
                async with asyncio.timeout(self._slow_seconds):
                    await context.write(response)
            except TimeoutError:
                break
            place.stalls(is_stalled=False)
        self.slow += 1
        reason = f"read nothing for {self._slow_seconds:.0f} s"
        log.warning("%s: ended a watcher that %s", place.address, reason)
        return f"the watcher {reason}"

    async def _watch(
        self, request: pb.WatchRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.WatchResponse]:
        cache, journal = self._cache, self._cache.journal
        cache.collect()
        resumes = journal.reaches(request.epoch, request.sequence)
        position = request.sequence if resumes else journal.sequence
        hello = pb.Hello(
            epoch=journal.epoch, snapshot=not resumes, pod=cache.pod, ranks=len(cache.ranks),
            newest=journal.sequence, heartbeat_ms=round(self._heartbeat * 1000),
        )  # fmt: skip
        yield pb.WatchResponse(hello=hello)
        if not resumes:
            self.snapshots += 1
            for response in cache.snapshot():
                if response.HasField("end"):
                    position = response.end.sequence
                    response.end.newest = journal.sequence
                yield response
        while True:
            news = self._news
            deltas = journal.after(position, TAKEN_AT_ONCE)
            if deltas is None:
                self.cut_off += 1
                problem = "the watcher fell behind the journal; watch again for a snapshot"
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


def _client(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """Return a watcher's client: the subject of its certificate, or else its host."""
    shown = context.auth_context()
    subject = shown.get("x509_subject") or shown.get("x509_common_name") or ()
    peer = context.peer() or ""
    named = ", ".join(part.decode(errors="replace") for part in subject)
    return named or peer.rpartition(":")[0] or peer


def is_named(context: Mapping[str, Iterable[bytes]], allowed: Sequence[str]) -> bool:
    """Return whether a certificate, as gRPC's `auth_context` shows it, has an allowed name.

    Without any allowed names every caller that TLS accepts is allowed.
    """
    return not allowed or any(name in allowed for name in names_of(context))
