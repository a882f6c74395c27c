"""Calls of Pick to a service whose waits a test ends one by one; a call can be cancelled at any wait.

One file: the machine and the calls that it makes.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine, Generator
from copy import copy
from functools import partial
from typing import Any, Literal

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from tests.router.consistent import check
from tests.router.pick.picker_parts import Parts
from warmpath.h2grpc.method import RefusedError
from warmpath.indexer.keys.key import pack_tokens
from warmpath.indexer.shared.redis.command import Command
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.admission.in_flight import InFlight
from warmpath.router.calls.intake import Intake
from warmpath.router.calls.pick import PickAnswerer
from warmpath.router.calls.service import RouterService
from warmpath.router.diagnosis.attribution import Attribution
from warmpath.router.diagnosis.decisions import Decisions
from warmpath.router.ending import Drain
from warmpath.router.peers.received import RouterSums
from warmpath.router.pick.picker import Picker
from warmpath.router.pick.weigh import Ask
from warmpath.router.pods.table import PodTable
from warmpath.router.prompt.token_prompt import ReadPrompt, TokenPrompt

BLOCKS = 4
MOMENT = 0.05
EVERY, OLDEST, NEWEST = slice(None), slice(1), slice(-1, None)
When = Literal["waiting", "answered"]
"""Whether a call is cancelled while it waits, or in the turn in which its wait is over."""


class Cancelled:
    """Awaits a coroutine, and cancels the awaiting task at the coroutine's `at`-th wait."""

    def __init__(self, call: Coroutine[Any, Any, None], at: int, when: When) -> None:
        self._call = call
        self._at = at
        self._when = when

    def __await__(self) -> Generator[Any, None, None]:
        steps = self._call.__await__()
        step: Callable[[], Any] = partial(steps.send, None)
        waits = 0
        while True:
            try:
                waited_for = step()
            except StopIteration:
                return
            waits += 1
            if waits == self._at:
                self._cancel(waited_for)
            try:
                yield waited_for
            except BaseException as error:  # noqa: BLE001  the coroutine gets it
                step = partial(steps.throw, error)
            else:
                step = partial(steps.send, None)

    def _cancel(self, waited_for: "asyncio.Future[Any] | None") -> None:
        task = asyncio.current_task()
        assert task is not None
        if waited_for is None or self._when == "waiting":
            asyncio.get_running_loop().call_soon(task.cancel)
        else:
            # This runs before the callback that wakes the task.
            waited_for.add_done_callback(lambda _: task.cancel())


class Waits:
    def __init__(self) -> None:
        self._open: list[asyncio.Future[None]] = []

    def __len__(self) -> int:
        return sum(not one.done() for one in self._open)

    async def wait(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self._open.append(future)
        await future

    def over(self, which: slice) -> None:
        """End some of the waits, which are in the order in which they began."""
        self._open = [one for one in self._open if not one.done()]
        for one in self._open[which]:
            one.set_result(None)


class SlowReader:
    """A reader of prompts that waits, as for a tokenizer."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits

    async def read(
        self, message: pb.Prompt, timeout: float, *, may_reckon: bool, fields: None = None
    ) -> ReadPrompt:
        del timeout, may_reckon, fields
        await self._waits.wait()
        tokens = message.token_ids_packed
        return ReadPrompt(TokenPrompt(message.model, tokens), 0, unread=7 * bool(message.lora))

    def troubles(self) -> dict[str, str]:
        return {}


class SlowPicker:
    """A picker that waits before each pick, as for the shared index."""

    is_asking = True

    def __init__(self, picker: Picker, waits: Waits) -> None:
        self._picker = picker
        self._waits = waits

    async def refresh(self, ask: Ask, timeout: float) -> None:
        del ask, timeout
        await self._waits.wait()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._picker, name)


class Codes:
    """A meter that keeps the status, and the reason, with which each call ended."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.reasons: list[str] = []

    def answered(self, method: str, code: str, seconds: float, reason: str = "") -> None:
        del method, seconds
        self.seen.append(code)
        self.reasons.append(reason)

    def scored(self, prompt_tokens: int, matched_tokens: int) -> None:
        del prompt_tokens, matched_tokens
        raise AssertionError("nothing is scored")


class Call:
    """A call's transport: a write waits until a test lets it end; it fails if the client is gone."""

    peer = "ipv4:127.0.0.1:1"
    metadata: tuple[tuple[str, str], ...] = ()
    seconds_left = math.inf

    def __init__(self, waits: Waits, *, is_gone: bool) -> None:
        self.written: list[pb.PickResponse] = []
        self.gone: Callable[[], None] | None = None
        self._waits = waits
        self._is_gone = is_gone

    def if_gone(self, call: Callable[[], None]) -> None:
        self.gone = call

    async def write(self, message: bytes) -> None:
        await self._waits.wait()
        if self._is_gone:
            raise asyncio.CancelledError("the stream is closed")
        self.written.append(pb.PickResponse.FromString(message))


class Calls:
    """Calls of Pick to a service whose waits a test ends."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        # The loop's own timers would fire by the real clock.
        self.loop.call_later = self._call_later  # type: ignore[method-assign, assignment]
        self._timers: list[tuple[float, asyncio.Handle]] = []
        self.waits = Waits()
        self.decisions, self.attribution = Decisions(), Attribution()
        self.parts = Parts(pods=1, router="router-1", witnesses=(self.decisions, self.attribution))
        self.parts.pods.append(self.parts.blind("pod-blind"))
        slow: Any = copy(self.parts.picking)
        slow.picker = SlowPicker(self.parts.picker, self.waits)
        self.picks = PickAnswerer(
            SlowReader(self.waits),  # type: ignore[arg-type]
            PodTable(self.parts.pods),
            self.parts.ingest,
            slow,
            decisions=self.decisions,
            attribution=self.attribution,
            clock=lambda: self.parts.now,
            wall_offset=lambda: 0.0,
        )
        self.meter = Codes()
        in_flight = InFlight(1, 1, seconds=1.0, clock=lambda: 0.0)
        self.service = RouterService(
            None,  # type: ignore[arg-type]
            self.picks,
            self.meter,
            Drain(lambda: 0.0),
            Intake(in_flight, in_flight, self.meter, seconds=1.0),
            tokenize_seconds=1.0,
        )
        self.running: list[asyncio.Task[None]] = []
        self.answered: list[tuple[pb.PickRequest, pb.PickResponse]] = []
        """Answered requests with their answers, in the order of the answers."""
        self.aborted: list[tuple[Any, ...]] = []
        """The statuses of refused calls, with their texts."""
        self.cancelled = 0

    def _call_later(
        self, seconds: float, call: Callable[..., None], *args: Any
    ) -> asyncio.TimerHandle:
        at = self.parts.now + seconds
        handle = asyncio.TimerHandle(at, call, args, self.loop)
        self._timers.append((at, handle))
        return handle

    @property
    def timers(self) -> int:
        """Number of timers that have not fired and are not cancelled."""
        return sum(not handle.cancelled() for _, handle in self._timers)

    def start(
        self,
        prompt: int,
        *,
        at: int = 0,
        when: When = "waiting",
        is_gone: bool = False,
        is_unread: bool = False,
        **fields: Any,
    ) -> None:
        """Start a call, which is cancelled at its `at`-th wait; 0: never."""
        tokens = pack_tokens(range(1000 * prompt, 1000 * prompt + 16 * BLOCKS + 1))
        message = pb.Prompt(model="m", token_ids_packed=tokens, lora="x" * is_unread)
        request = pb.PickRequest(prompt=message, **fields)
        context = Call(self.waits, is_gone=is_gone)
        context.metadata = (("x-request-id", request.session_id),)
        call = self.service.pick(request.SerializeToString(), context)  # type: ignore[arg-type]

        async def run() -> None:
            try:
                await Cancelled(call, at, when)
            except RefusedError as error:
                self.aborted.append((error.refusal.code, error.refusal.text))
                return
            self.answered.append((request, context.written[0]))

        self.running.append(self.loop.create_task(run()))
        self.turns()

    def turns(self) -> None:
        """Run the event loop until every task waits; collect the calls that have ended."""

        async def pass_turns() -> None:
            for _ in range(16):
                await asyncio.sleep(0)

        self.loop.run_until_complete(pass_turns())
        for task in [task for task in self.running if task.done()]:
            self.running.remove(task)
            self.cancelled += task.cancelled()
            if not task.cancelled():
                task.result()

    def go_on(self, which: slice = EVERY) -> None:
        """End waits, except those for a timer."""
        self.waits.over(which)
        self.turns()

    def pass_time(self, seconds: float) -> None:
        self.parts.now += seconds
        due = [handle for at, handle in self._timers if at <= self.parts.now]
        self._timers = [timer for timer in self._timers if timer[0] > self.parts.now]
        for handle in due:
            if not handle.cancelled():
                self.loop.call_soon(handle._run)
        self.turns()

    def finish(self) -> None:
        while self.running:
            self.go_on()
            self.pass_time(MOMENT)

    def told(self) -> RouterSums:
        """Return the loads that other routers would get now."""
        peers = self.parts.peers
        assert peers is not None
        # It is sent even if it has not changed.
        peers._written_at = float("-inf")
        for ask in peers.ask(self.parts.now):
            if isinstance(ask, Command) and ask.words[0] == "SET":
                return msgspec.msgpack.decode(ask.words[2], type=RouterSums)
        raise AssertionError("nothing was told")

    def check(self) -> None:
        check(self.parts.picking)
        check(self.picks.reports.underway)
        check(self.decisions)
        check(self.attribution)
        if self.picks.held is not None:
            check(self.picks.held)

    def check_over(self) -> None:
        """Check that no call waits for anything."""
        assert not self.running
        assert not len(self.waits)
        assert not self.timers
        assert not self.picks.reports.underway._turns
        assert not asyncio.all_tasks(self.loop)

    def check_left(self) -> None:
        """Check, once every call has ended, that only answered calls have left bookings and beliefs."""
        self.check_over()
        picked = [(asked, got) for asked, got in self.answered if not asked.shadow]
        kept = self.parts.picker
        assert len(kept) == len(self.answered)
        placed = [kept.get(got.booking_id) for _, got in self.answered]
        booked = sum((one.booking is not None) + (one.decoding is not None) for one in placed)
        assert len(self.parts.bookings) == booked
        assert len([*self.parts.believed.arrivals()]) == len(picked)
        assert sum(rank.in_flight for rank in self.told().ranks) == booked
        assumed: dict[bytes, int] = {}
        for asked, got in picked:
            best = got.candidates[0]
            if best.pod == "pod-blind":
                assumed[asked.prompt.token_ids_packed] = BLOCKS
        assert self.parts.believed.count("pod-blind", 0) == sum(assumed.values())
        states = [one.state for one in self.decisions.listed()]
        assert states.count(pb.Decision.PICKED) == len(self.answered)
        assert states.count(pb.Decision.CANCELLED) == kept.withdrawn
        assert sum(row.requests for row in self.attribution.rows()) == len(picked)
        assert self.meter.seen.count("OK") == len(self.answered)
        assert self.meter.seen.count("CANCELLED") == self.cancelled
        assert len(self.meter.seen) == len(self.answered) + self.cancelled
        for _, got in self.answered:
            assert kept.ended(got.booking_id, "failed", self.parts.now)
        assert not len(self.parts.bookings)
        assert not [*self.parts.believed.arrivals()]
        assert not self.told().ranks

    def close(self) -> None:
        self.loop.close()


class CallsMachine(RuleBasedStateMachine):
    """Calls that go on and are cancelled at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = Calls()

    @rule(which=st.sampled_from([EVERY, OLDEST, NEWEST]))
    def go_on(self, which: slice) -> None:
        self.calls.go_on(which)

    @rule(share=st.sampled_from([0.5, 1.0]))
    def pass_time(self, share: float) -> None:
        self.calls.pass_time(share * MOMENT)

    @precondition(lambda self: self.calls.running)
    @rule(number=st.integers(0, 9))
    def cancel(self, number: int) -> None:
        self.calls.running[number % len(self.calls.running)].cancel()
        self.calls.turns()
