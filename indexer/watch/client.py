"""The gRPC connection to one pod's publisher (`proto/warmpath/watch/v1/cache_watch.proto`)."""

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import grpc.aio

from warmpath.indexer.watch.watched_source import WatchedRank
from warmpath.process.bytes import read_message
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2 as pb

log = logging.getLogger(__name__)

WATCH = "/{}/Watch".format(pb.DESCRIPTOR.services_by_name["CacheWatch"].full_name)

OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),
    # A vanished host sends no FIN; pings find that the connection is dead.
    ("grpc.keepalive_time_ms", 2000),
    ("grpc.keepalive_timeout_ms", 3000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


BEHIND = "its publisher's latest changes are under way"
"""The reason while changes from before the connection, or made during the snapshot, are on their way."""


class ProtocolError(Exception):
    """The publisher sent a message that the protocol does not allow here."""


class Watcher:
    """Feeds one pod's ranks from its publisher until it is cancelled.

    The publisher's `--pod` has to be the ranks' pod, or `name`, if that is not empty: a shorter name of
    the same pod. `credentials` returns those of the next connection; it is None for plain connections.
    After a change of credentials the stream goes on, and the next attempt is made with the new ones.
    `retry_seconds` is the pause between attempts.
    """

    def __init__(
        self,
        ranks: Sequence[WatchedRank],
        address: str,
        *,
        keyspace: str,
        credentials: Callable[[], grpc.ChannelCredentials] | None,
        retry_seconds: float,
        name: str = "",
    ) -> None:
        self._ranks = ranks
        self._names = {ranks[0].pod, name or ranks[0].pod}
        self._address = address
        self._keyspace = keyspace
        self._credentials: Callable[[], grpc.ChannelCredentials | None]
        self._credentials = credentials or (lambda: None)
        self._retry_seconds = retry_seconds
        self._epoch = ""
        self._sequence = 0
        self._loading = False
        self._due = 0
        """The last delta's sequence when the publisher began to send deltas."""
        self._logged = ""
        """The status of the last failure; empty while connected."""

    async def run(self) -> None:
        while True:
            credentials = self._credentials()
            channel = (
                grpc.aio.insecure_channel(self._address, options=OPTIONS)
                if credentials is None
                else grpc.aio.secure_channel(self._address, credentials, options=OPTIONS)
            )
            async with channel:
                # Where gRPC parses messages, a malformed one arrives as None and logs a traceback, so
                # the stream is read as bytes.
                watch: Any = channel.unary_stream(WATCH, pb.WatchRequest.SerializeToString)
                while self._credentials() is credentials:
                    await self._attempt(watch)

    async def _attempt(self, watch: Any) -> None:
        try:
            await self._follow(watch)
            reason = "the publisher ended the stream"
        except grpc.aio.AioRpcError as error:
            # The details change from one attempt to the next; the status does not.
            reason = f"{error.code().name}: {error.details()}"
        except (ProtocolError, ValueError) as error:
            # A message was refused, so a snapshot is asked for next time.
            reason = f"refused: {error}"
            self.failed(reason)
        self._log(reason)
        for rank in self._ranks:
            rank.disconnected(reason)
        await asyncio.sleep(self._retry_seconds)

    def failed(self, reason: str) -> None:
        """Doubt the ranks for a reason, and ask for a snapshot next time."""
        self._epoch = ""
        for rank in self._ranks:
            rank.refused(reason)
            rank.disconnected(reason)

    def _log(self, reason: str) -> None:
        """Log why there is no stream, unless the line before this one had the same status."""
        status = reason.partition(":")[0]
        if status != self._logged:
            self._logged = status
            log.warning("pod %s: watch: %s", self._ranks[0].pod, reason)

    async def _follow(self, watch: Callable[[pb.WatchRequest], Any]) -> None:
        epoch = "" if self._loading else self._epoch
        call = watch(pb.WatchRequest(epoch=epoch, sequence=self._sequence, keyspace=self._keyspace))
        try:
            async for raw in call:
                self._take(read_message(pb.WatchResponse, raw))
        finally:
            call.cancel()

    def _take(self, response: pb.WatchResponse) -> None:
        for rank in self._ranks:
            rank.heard()
        kind = response.WhichOneof("kind")
        if kind == "hello":
            self._begin(response.hello)
        elif kind == "part":
            if not self._loading:
                raise ProtocolError("a part of a snapshot came outside of one")
            self._rank(response.part.rank).take_part(response.part)
        elif kind == "end":
            if not self._loading:
                raise ProtocolError("the end of a snapshot came outside of one")
            self._reach(response.end.sequence, response.end.newest)
            for state in response.end.ranks:
                self._rank(state.rank).take_state(state)
            self._loading = False
        elif kind == "delta":
            delta = response.delta
            if self._loading or delta.sequence != self._sequence + 1:
                raise ProtocolError(f"delta {delta.sequence} does not follow {self._sequence}")
            self._rank(delta.state.rank).take_delta(delta, is_next=True)
            self._reach(delta.sequence, self._due)

    def _reach(self, sequence: int, due: int) -> None:
        """Note the present position; no rank is exact before delta `due` is applied."""
        was_behind, is_behind = self._sequence < self._due, sequence < due
        self._sequence, self._due = sequence, due
        if is_behind is not was_behind:
            for rank in self._ranks:
                rank.limit(BEHIND if is_behind else "", BEHIND)

    def _begin(self, hello: pb.Hello) -> None:
        if hello.pod not in self._names:
            raise ProtocolError(
                f"the publisher at {self._address} is pod {hello.pod!r}'s (--pod), not "
                f"{self._ranks[0].pod!r}'s"
            )
        if hello.ranks != len(self._ranks):
            raise ProtocolError(
                f"the publisher follows {hello.ranks} ranks, but {len(self._ranks)} are configured"
            )
        if not hello.snapshot and (hello.epoch != self._epoch or self._loading):
            raise ProtocolError(
                "the publisher goes on from a position that this router did not give"
            )
        self._epoch = hello.epoch
        self._logged = ""
        self._loading = hello.snapshot
        self._reach(self._sequence, hello.newest)
        for rank in self._ranks:
            rank.heard((hello.heartbeat_ms or math.inf) / 1000)
            rank.connected()
            if hello.snapshot:
                rank.begin_snapshot()

    def _rank(self, number: int) -> WatchedRank:
        if number >= len(self._ranks):
            raise ProtocolError(f"rank is {number}; it must be below {len(self._ranks)}")
        return self._ranks[number]
