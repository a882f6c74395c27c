"""gRPC's standard health service: whether a process is fit, asked once or watched. No sockets here.

`grpc_health`'s own servicer holds a lock while it writes to a watcher. A watcher that reads nothing
keeps that lock, and then nobody gets an answer. Here no watcher waits for another.

Source: `grpc/health/v1/health.proto`.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping

from grpc_health.v1 import health_pb2 as pb

from warmpath.process.bytes import read_message

LOOK_SECONDS = 0.1
"""Seconds between two looks at the status, after which watching clients get a change. A client that asks
once gets the status of that moment."""
MOST_BYTES = 4096
"""The most bytes of a request, which only has a service's name."""
MOST_WATCHERS = 1024
"""The most clients that watch at once."""

Status = pb.HealthCheckResponse


class UnknownServiceError(Exception):
    """The process has no service of this name."""


class WatchersFullError(Exception):
    """`MOST_WATCHERS` clients watch already."""

    def __init__(self) -> None:
        super().__init__(f"{MOST_WATCHERS} clients watch the health already")


class HealthService:
    """Answers health checks; `looks` has, by a service's name, a function that says if it is fit."""

    def __init__(self, looks: Mapping[str, Callable[[], bool]]) -> None:
        self._looks = looks
        self._distinct = tuple(dict.fromkeys(looks.values()))
        self._was_fit: tuple[bool, ...] = ()
        self._news = asyncio.Event()
        self._watchers = 0

    def check(self, raw: bytes) -> bytes:
        """Return the answer to a request; both are protobuf messages as bytes.

        Raises UnknownServiceError, and ValueError where the request is malformed.
        """
        return _answer(self._status(_name(raw)))

    def is_fit(self, name: str) -> bool:
        """Return whether a service is fit. Raises UnknownServiceError."""
        if name not in self._looks:
            raise UnknownServiceError(name)
        return self._looks[name]()

    async def watch(self, raw: bytes) -> AsyncGenerator[bytes, None]:
        """Yield the status, then each status that differs from the last; all messages are bytes.

        An unknown service has SERVICE_UNKNOWN. Raises ValueError as `check`, and WatchersFullError.
        """
        name = _name(raw)
        if self._watchers == MOST_WATCHERS:
            raise WatchersFullError
        said = None
        self._watchers += 1
        try:
            while True:
                status = self._status(name) if name in self._looks else Status.SERVICE_UNKNOWN
                news = self._news
                if status != said:
                    said = status
                    yield _answer(status)
                await news.wait()
        finally:
            self._watchers -= 1

    async def keep_notifying(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(LOOK_SECONDS)

    def _status(self, name: str) -> int:
        self.look()
        return Status.SERVING if self.is_fit(name) else Status.NOT_SERVING

    def look(self) -> None:
        """Wake the clients that watch if the status of any service has changed."""
        is_fit = tuple(look() for look in self._distinct)
        if is_fit != self._was_fit:
            # The first to see a change wakes all watchers: they would miss a short one otherwise.
            self._was_fit = is_fit
            self._news.set()
            self._news = asyncio.Event()


def _name(raw: bytes) -> str:
    if len(raw) > MOST_BYTES:
        raise ValueError(f"a request for the health has {len(raw)} bytes, more than {MOST_BYTES}")
    name: str = read_message(pb.HealthCheckRequest, raw).service
    return name


def _answer(status: int) -> bytes:
    answer: bytes = Status(status=status).SerializeToString()
    return answer
