"""Picks for gateways that ask in one call of HTTP/1.1: Envoy's `ext_authz` filter with `http_service`.

Envoy sends the request as its client has sent it, to /pick and the request's own path. The answer 200
has the endpoints as a header, and whether another filter is to ask again (THROUGH). Envoy takes 5xx for
a failure, after which that filter asks; so refusals with 503 go out as 403, and Envoy's configuration
turns them back.

    bytes ─► http1.Requests ─► EndpointPickerService.answer ─► bytes
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import cast
from urllib.parse import quote

import msgspec

from warmpath.h2grpc.http2.limits import Http2Limits
from warmpath.h2grpc.metadata import address_of, names_of, peer_name
from warmpath.h2grpc.method import Metadata
from warmpath.process.address import HostPort
from warmpath.process.health import HealthService, UnknownServiceError
from warmpath.process.listener import Place
from warmpath.process.loop import Begun
from warmpath.router.access.entrance import HEADER, PLAIN_PICK, Entrance
from warmpath.router.ending import EndingError
from warmpath.router.endpoint_picker.access_log import is_read_whole
from warmpath.router.endpoint_picker.events import (
    UNAVAILABLE,
    Endpoint,
    NeedsExchangeError,
    NoPick,
    Picked,
    Settings,
    WantPick,
    immediate,
    is_upgrade,
)
from warmpath.router.endpoint_picker.http1 import MalformedError, Request, Requests, answer_of
from warmpath.router.endpoint_picker.protocol import (
    BOOKING,
    EXCHANGE,
    PICK,
    ROUTER,
    SUBSET,
    THROUGH,
    TOLD,
    WATCH,
)
from warmpath.router.endpoint_picker.service import EndpointPickerService
from warmpath.router.queue.request import Asker
from warmpath.router.tracing.steps import NO_SPAN, Span, request_id_of

log = logging.getLogger(__name__)

HEALTH = "/health/"
"""The beginning of the paths of health checks, before a service's name."""
REQUEST_SECONDS = 30.0
"""Longest time from a request's first byte to its last."""
LOOK_SECONDS = 1.0
GONE_SECONDS = 1.0
"""A gateway that closes its connection within this time after an answer has hardly read that: its client
had gone. Otherwise gateways keep connections."""
DENIED = 403
"""The status that goes out for UNAVAILABLE."""


class PlainCalls:
    """Answers the calls of all connections."""

    def __init__(
        self,
        desk: EndpointPickerService,
        entrance: Entrance,
        checks: HealthService,
        limits: Http2Limits,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.desk = desk
        self.limits = limits
        self.clock = clock
        self.connections: set[Connection] = set()
        self._entrance = entrance
        self._checks = checks

    def connection(self, place: Place) -> "Connection":
        return Connection(self, place)

    @property
    def may_keep(self) -> bool:
        """Whether there is room for more bytes of bodies."""
        return self.desk.held_bytes <= self.desk.max_held_bytes

    async def keep_looking(self) -> None:
        """End connections that exceed their time limits, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = self.clock()
            for one in list(self.connections):
                one.look(now)

    def close(self) -> None:
        for one in list(self.connections):
            one.close()

    async def answer(self, request: Request, caller: "Connection") -> None:
        """Answer a request. Raises ConnectionError if its client has gone."""
        path = request.target
        if path.startswith(HEALTH):
            caller.write(self._health(path.removeprefix(HEALTH)))
            return
        if not path.startswith(f"{PLAIN_PICK}/"):
            caller.write(_error(404, f"there are only {PLAIN_PICK}/… and {HEALTH}…"))
            return
        if not self._entrance.is_open and (why := self._refusal(request, caller)):
            caller.write(_error(UNAVAILABLE, why))
            return
        try:
            self.desk.drain.begin()
        except EndingError as error:
            caller.write(_error(UNAVAILABLE, str(error), is_last=True), is_last=True)
            return
        try:
            path = path.removeprefix(PLAIN_PICK)
            if self.desk.tracer.is_on:
                await self._traced(request, path, caller)
            else:
                await self._pick(request, path, caller, NO_SPAN)
        finally:
            self.desk.drain.end()

    def _health(self, name: str) -> bytes:
        try:
            return answer_of(200 if self._checks.is_fit(name) else UNAVAILABLE)
        except UnknownServiceError:
            return _error(404, f"there is no service {name[:100]!r}")

    def _refusal(self, request: Request, caller: "Connection") -> str:
        authorization = request.headers.get(HEADER)
        shown = () if authorization is None else (authorization,)
        refusal = self._entrance.refusal(PLAIN_PICK, shown, caller.names)
        if refusal is None:
            return ""
        self.desk.meter.kept_out(PLAIN_PICK, refusal.why)
        log.warning("%s: refused to %s: %s", PLAIN_PICK, caller.peer, refusal.text)
        return refusal.text

    async def _traced(self, request: Request, path: str, caller: "Connection") -> None:
        attributes = {
            "http.request.method": request.method,
            "http.route": PLAIN_PICK,
            "url.path": path.partition("?")[0],
        }
        carrier = request.headers.items()
        with self.desk.tracer.call(f"{request.method} {PLAIN_PICK}", carrier, attributes) as span:
            await self._pick(request, path, caller, span)

    async def _pick(self, request: Request, path: str, caller: "Connection", span: Span) -> None:
        desk, headers = self.desk, request.headers
        subset = headers.get(SUBSET)
        want = WantPick(
            # Nothing is sent before both sides have agreed.
            b"" if "upgrade" in headers and is_upgrade((*headers.items(),)) else request.body,
            None if subset is None else frozenset(filter(None, subset.replace(" ", "").split(","))),
            {**headers, ":method": request.method, ":path": path, "": ""},
            is_shadow=desk.picks.is_shadow,
            is_one_call=True,
        )
        caller.authorization = headers.get(HEADER)
        asker = Asker(caller.peer, caller, request_id_of(headers.items()))

        async def tell(made: Picked | NoPick | None) -> None:
            if isinstance(made, NoPick) and not want.is_shadow:
                refused = immediate(made, desk.ours)
                status = DENIED if refused.status == UNAVAILABLE else refused.status
                caller.write(answer_of(status, refused.put, refused.body))
                return
            put: Settings = ((THROUGH, PICK),)
            if isinstance(made, Picked):
                if is_read_whole(made.booking_id, desk.watched_share):
                    put = ((THROUGH, WATCH),)
                put += ((BOOKING, made.booking_id), (ROUTER, caller.reached_at))
                if not want.is_shadow:
                    put += (*made.put(desk.ours), (TOLD, _told(made.endpoints)))
            caller.write(answer_of(200, put))

        try:
            await desk.answer(PLAIN_PICK, want, asker, tell, answering=caller, span=span)
        except NeedsExchangeError:
            caller.write(answer_of(200, ((THROUGH, EXCHANGE),)))


_quoted = lru_cache(4096)(quote)


def _told(endpoints: Mapping[str, Endpoint]) -> str:
    """Return what Envoy's filter tells of the endpoint that serves the request, for each of them."""
    told = []
    for address, one in endpoints.items():
        is_known = one.cached_tokens is not None
        cached = f"{one.cached_tokens} {one.saved_seconds:.3f}" if is_known else "- -"
        told.append(f"{address} {_quoted(one.pod)} {cached}")
    return ",".join(told)


def _error(status: int, text: str, *, is_last: bool = False) -> bytes:
    body = msgspec.json.encode({"error": text})
    return answer_of(status, (("content-type", "application/json"),), body, is_last=is_last)


class Connection(asyncio.Protocol):
    """One connection, which answers one request after the other."""

    def __init__(self, calls: PlainCalls, place: Place) -> None:
        self._calls = calls
        self._place = place
        self._requests = Requests(calls.desk.most_body_bytes)
        self._held = 0
        """Bytes of this connection in the desk's count of held bytes."""
        self._task: asyncio.Task[None] | None = None
        self._since: float | None = None
        """When the first byte came of a request that is not whole."""
        self._idle_since = calls.clock()
        self._stalled_since: float | None = None
        """Since when the client has not read what waits for it."""
        self._gone: Callable[[], None] | None = None
        self._told_at = 0.0
        self._is_last = False
        self.authorization: str | None = None
        """That of the request that is being answered."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast("asyncio.Transport", transport)
        self._loop = asyncio.get_running_loop()
        self._calls.connections.add(self)
        self._place.end = self._socket.abort
        self._place.works(is_busy=False)
        self.peer = peer_name(transport.get_extra_info("peername"))
        own = transport.get_extra_info("sockname")
        self.reached_at = str(HostPort(*own[:2])) if isinstance(own, tuple) else ""
        """Our own address, as the client knows it; empty for a socket of Unix."""

    @property
    def names(self) -> Sequence[str]:
        """The names in the client's certificate."""
        return names_of(self._socket.get_extra_info("ssl_object"))

    @property
    def metadata(self) -> Metadata:
        """What shows who the sender of the present request is."""
        return () if self.authorization is None else ((HEADER, self.authorization),)

    def data_received(self, data: bytes) -> None:
        try:
            self._requests.feed(data, may_keep=self._calls.may_keep)
            self._go_on()
        except MalformedError as error:
            self._say("the connection ends: %s", error)
            if self._task is None:
                self._socket.write(_error(error.status, str(error)))
                self._socket.close()
            else:
                self._socket.abort()

    def _go_on(self) -> None:
        request = None
        if self._task is None and self._stalled_since is None and not self._socket.is_closing():
            request = self._requests.next()
        self._count_held()
        if request is None:
            if not self._requests.has_begun:
                self._since = None
            elif self._since is None:
                self._since = self._calls.clock()
            return
        self._since = self._gone = None
        self._is_last = request.is_last
        answer = self._calls.answer(request, self)
        if not self._calls.desk.tracer.is_on:
            try:
                answer = Begun(answer)
            except Exception as error:  # noqa: BLE001  as the error of a task
                self._answered(error)
                return
            if answer.is_over:
                self._answered(None)
                return
        # The current span of a trace is that of a task.
        self._place.works(is_busy=True)
        self._task = self._loop.create_task(answer)
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        self._answered(asyncio.CancelledError() if task.cancelled() else task.exception())

    def _answered(self, error: BaseException | None) -> None:
        self._requests.answered()
        self._count_held()
        self._idle_since = self._calls.clock()
        self._place.works(is_busy=False)
        if isinstance(error, ConnectionError | asyncio.CancelledError):
            self._socket.abort()
        elif error is not None:
            log.critical("a call over HTTP/1.1 has failed", exc_info=error)
            self._socket.abort()
        elif self._is_last:
            self._socket.close()
        elif self._requests.has_begun:
            # What came meanwhile, after what others have sent.
            self._loop.call_soon(self.data_received, b"")

    def write(self, answer: bytes, *, is_last: bool = False) -> None:
        """Send an answer; close the connection after it if it `is_last`. Raises ConnectionError."""
        if self._socket.is_closing():
            raise ConnectionResetError("the gateway has gone")
        self._is_last |= is_last
        self._socket.write(answer)

    def if_gone(self, call: Callable[[], None]) -> None:
        """Call `call`, once, if the client turns out not to have read the answer."""
        self._gone, self._told_at = call, self._calls.clock()

    def pause_writing(self) -> None:
        self._stalled_since = self._calls.clock()

    def resume_writing(self) -> None:
        self._stalled_since = None
        self.data_received(b"")

    def connection_lost(self, _: Exception | None) -> None:
        self._calls.connections.discard(self)
        self._place.leave()
        if self._task is not None:
            self._task.cancel()
        elif (
            self._gone is not None
            and not self._is_last
            and self._calls.clock() - self._told_at < GONE_SECONDS
        ):
            self._gone()
        self._requests = Requests(0)
        self._count_held()

    def _count_held(self) -> None:
        change = self._requests.held - self._held
        self._held += change
        self._calls.desk.held_bytes += change

    def look(self, now: float) -> None:
        """End the connection if it exceeds a time limit."""
        limits = self._calls.limits
        problem = ""
        if self._since is not None and now - self._since > REQUEST_SECONDS:
            problem = f"a request was not whole within {REQUEST_SECONDS:g} s"
        elif self._stalled_since is not None and now - self._stalled_since > limits.stall_seconds:
            problem = f"nothing was read for {limits.stall_seconds:g} s"
        elif self._task is None and now - self._idle_since > limits.idle_seconds:
            self._socket.close()
        if problem:
            self._say("the connection is cut off: %s", problem)
            self._socket.abort()

    def close(self) -> None:
        """Close the connection; an answer that is under way is not given."""
        self._socket.close()

    def _say(self, what: str, *args: object) -> None:
        # The lines of an address are of one kind, whatever its ports (`process.logs`).
        address = address_of(self.peer)
        log.info("%s%s: " + what, address, self.peer.removeprefix(address), *args)  # noqa: G003
