"""The queue under any events: nobody is lost, nobody waits beyond its bound, and no booking is left."""

from collections.abc import Sequence
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.examples import examples
from tests.router.consistent import check
from tests.router.queue.queue_stand import QueueStand, Sent
from warmpath.router.config.schema import QueueTable
from warmpath.router.load.engine_metrics import Observed
from warmpath.router.pick.eligible import NoPodError
from warmpath.router.queue.request import QueueFullError, Waiting

MOST = 8
MOST_WAIT = 5.0
MOST_BYTES = 30


class AnyEvents(RuleBasedStateMachine):
    """Arrivals, reports, cancelled callers, pods that die and come, a gateway that goes elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.stand = QueueStand(
            pods=3,
            max_requests=MOST,
            max_bytes=MOST_BYTES,
            most_looks=3,
            wait_seconds=MOST_WAIT,
            shares={"a": 2.0},
        )
        self.every = list(self.stand.pods)
        self.waiting: list[Waiting] = []
        self.flying: list[Sent] = []
        self.entered = self.sent = self.refused = self.left = 0

    @rule(
        tokens=st.sampled_from([1, 500, 5_000, 40_000]),
        named=st.sampled_from([(), (), ("pod-0",), ("pod-1", "pod-2")]),
        tenant=st.sampled_from("abc"),
        caller=st.sampled_from("xy"),
        lora=st.sampled_from(["", "tuned"]),
        priority=st.integers(0, 2),
        size=st.integers(0, 2 * MOST_BYTES),
        patience=st.sampled_from([0.0, 0.5, 60.0]),
    )
    def arrive(self, patience: float, priority: int, size: int, **fields: Any) -> None:
        stand = self.stand
        until = stand.parts.now + patience
        try:
            waiting = stand.entering(until=until, priority=priority, size=size, **fields)
            stand.queue.enter(waiting, stand.parts.now)
        except NoPodError:
            return
        except QueueFullError:
            kept = [one.size for one in self.waiting if one.priority >= priority]
            assert len(kept) >= MOST or (kept and sum(kept) + size > MOST_BYTES)
            return
        self.entered += 1
        self.waiting.append(waiting)
        self.release()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def caller_goes(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.waiting))
        self.stand.queue.leave(one)
        assert not one.is_waiting
        self.waiting.remove(one)
        self.left += 1

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), event=st.sampled_from(["first_token", "finished", "failed", "elsewhere"]))
    def report(self, data: st.DataObject, event: str) -> None:
        picker, now = self.stand.parts.picker, self.stand.parts.now
        one = data.draw(st.sampled_from(self.flying))
        name = one.placed.booking_id
        if event == "first_token":
            picker.first_token(name, now)
        elif event == "elsewhere":
            picker.started(name, now, (data.draw(st.sampled_from(["pod-0", "pod-2"])), 0))
        else:
            picker.ended(name, event, now)  # type: ignore[arg-type]
            self.flying.remove(one)
        self.release()

    @rule(seconds=st.sampled_from([0.0, 0.05, 0.4, 3.0, 700.0]))
    def pass_time(self, seconds: float) -> None:
        """Let time pass, with a release at each time that the last one wanted, as the service does."""
        until = self.stand.parts.now + seconds
        for _ in range(2000):
            next_at = self.stand.release.next_at
            if next_at > until:
                break
            self.stand.parts.now = max(self.stand.parts.now, next_at)
            self.release()
        self.stand.parts.now = until
        self.stand.parts.picker.expire(until)
        self.release()

    @rule(number=st.integers(0, 2))
    def pod_dies_or_comes(self, number: int) -> None:
        pod, pods = self.every[number], self.stand.pods
        self.stand.pods = [one for one in self.every if (one in pods) is not (one is pod)]
        if pod in pods:
            self.stand.parts.picking.forget(pod)
        self.release()

    @rule(number=st.integers(0, 2), running=st.integers(0, 9), waiting=st.integers(0, 9))
    def engine_tells(self, number: int, running: int, waiting: int) -> None:
        now = self.stand.parts.now
        self.stand.parts.loads.observe(f"pod-{number}", 0, Observed(running, waiting, 0.5, now))
        self.release()

    @rule(hears=st.booleans())
    def reports_change(self, hears: bool) -> None:
        self.stand.hears = hears
        self.release()

    @rule(weight=st.sampled_from([0.5, 2.0]), places=st.tuples(*[st.integers(0, 2)] * 3))
    def settings_are_reloaded(self, weight: float, places: Sequence[int]) -> None:
        reloaded = QueueTable(
            max_requests=MOST,
            max_bytes=MOST_BYTES,
            wait_seconds=MOST_WAIT,
            shares={"a": weight, "b": 1 / weight},
        )
        expected = {one: places[one.priority] for one in self.waiting}
        self.stand.queue.use(reloaded, places.__getitem__)
        assert {one: one.priority for one in self.waiting} == expected
        self.release()

    def release(self) -> None:
        """Release until nobody else goes now, and check who went."""
        for _ in range(2 * MOST):
            self.stand.look()
            result = self.stand.release
            for one in self.stand.sent:
                assert one.placed.went[0] in {pod.id for pod in self.stand.pods}
                self.flying.append(one)
                self.sent += 1
            self.refused += len(result.refused)
            gone = [*result.sent, *result.refused]
            assert len({*gone}) == len(gone)
            assert all(not one.is_waiting for one in gone)
            self.waiting = [one for one in self.waiting if one not in gone]
            if result.next_at > self.stand.parts.now:
                return
        raise AssertionError("releases do not come to an end")

    @invariant()
    def everybody_is_somewhere(self) -> None:
        assert self.entered == self.sent + self.refused + self.left + len(self.waiting)
        assert len(self.stand.queue) == len(self.waiting)
        assert all(one.is_waiting for one in self.waiting)
        check(self.stand.queue)
        check(self.stand.parts.picking)

    @invariant()
    def nobody_waits_beyond_its_bound(self) -> None:
        now = self.stand.parts.now
        for one in self.waiting:
            assert one.until > now
            assert now - one.arrived < MOST_WAIT

    def teardown(self) -> None:
        self.stand.queue.drain()
        self.release()
        assert not self.waiting
        for one in self.flying:
            self.stand.parts.picker.ended(one.placed.booking_id, "finished", self.stand.parts.now)
        assert len(self.stand.parts.picker) == 0
        assert len(self.stand.parts.bookings) == 0
        assert all(self.stand.parts.wait(number) == 0.0 for number in range(3))


AnyEvents.TestCase.settings = settings(
    max_examples=examples(500), stateful_step_count=40, deadline=None
)
TestAnyEvents = AnyEvents.TestCase
