"""Routers that share bookings, and a Redis that fails, in any order of events."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.examples import examples
from tests.router.load.reports import started_on
from tests.router.peers.fake_store import FakeStore
from tests.router.peers.sharing_routers import NUMBERS, PROMPT, Router, rounds
from warmpath.indexer.keys.key import WORD_BYTES
from warmpath.router.load.engine_metrics import Observed
from warmpath.router.peers.received import EXPIRE_SECONDS


class AnyFleet(RuleBasedStateMachine):
    """Routers that book, report, speak to Redis, die and come back, and a Redis that fails."""

    def __init__(self) -> None:
        super().__init__()
        self.store = FakeStore()
        self.routers = [Router(self.store, 1000.0 * number) for number in range(3)]
        self.booked: list[tuple[Router, str]] = []
        self.reported: dict[str, tuple[Router, Router]] = {}
        """Bookings that must end: whose each is, and who was told of its end."""

    @rule(
        which=st.integers(0, 2),
        pod=st.sampled_from("pq"),
        prefill=st.floats(0, 9),
        tokens=st.integers(28, 99),
        has_name=st.booleans(),
    )
    def book(self, which: int, pod: str, prefill: float, tokens: int, has_name: bool) -> None:
        router = self.routers[which]
        name = f"call-{next(NUMBERS)}" if has_name else ""
        self.booked.append((router, router.book(prefill, pod, tokens, name=name)))

    @rule(which=st.integers(0, 2), pod=st.sampled_from("pq"), blocks=st.integers(1, 99))
    def send_a_prompt(self, which: int, pod: str, blocks: int) -> None:
        router = self.routers[which]
        keys = PROMPT[: blocks * WORD_BYTES]
        router.believed.arrive(pod, 0, keys, expires=router.now + 2.0)

    @rule(which=st.integers(0, 9), what=st.sampled_from(["started", "first token"]))
    def its_own_router_hears(self, which: int, what: str) -> None:
        if self.booked:
            router, name = self.booked[-1 - which % len(self.booked)]
            if what == "started":
                started_on(router.bookings, name, router.now, "pq"[which % 2])
            else:
                router.first_token(name)

    @rule(to=st.integers(0, 2), which=st.integers(0, 9))
    def any_router_hears_of_an_end(self, to: int, which: int) -> None:
        if self.booked:
            owner, name = self.booked.pop(-1 - which % len(self.booked))
            told = self.routers[to]
            # Of a caller's name it is known only that some router has the report.
            hears = told is owner or owner.name in told.peers.received.takers(told.now)
            if told.finish(name) and hears:
                self.reported[name] = owner, told

    @rule(which=st.integers(0, 2), pod=st.sampled_from("pq"))
    def speak_to_redis_while_a_pick_comes(self, which: int, pod: str) -> None:
        router = self.routers[which]
        router.round(lambda: self.booked.append((router, router.book(pod=pod))))

    @rule(
        which=st.integers(0, 2),
        pod=st.sampled_from("pq"),
        running=st.integers(0, 9),
        waiting=st.integers(0, 9),
        ago=st.floats(0, 3),
    )
    def observe(self, which: int, pod: str, running: int, waiting: int, ago: float) -> None:
        router = self.routers[which]
        router.loads.observe(pod, 0, Observed(running, waiting, 0.0, router.now - ago))

    @rule(which=st.integers(0, 2), pod=st.sampled_from("pq"))
    def a_pod_goes(self, which: int, pod: str) -> None:
        self.routers[which].bookings.forget(pod, 0)
        self.routers[which].loads.forget(pod, 0)

    @rule(which=st.integers(0, 2))
    def a_router_dies_and_another_takes_its_place(self, which: int) -> None:
        gone = self.routers[which]
        self.routers[which] = Router(self.store, gone.clock_ahead + 10.0)
        self.booked = [one for one in self.booked if one[0] is not gone]
        # A report that it was to hand on may have gone with it.
        self.reported = {name: both for name, both in self.reported.items() if gone not in both}

    @rule(seconds=st.one_of(st.floats(0, 0.2), st.floats(0, 5)))
    def time_passes(self, seconds: float) -> None:
        self.store.now += seconds

    @rule(is_away=st.booleans(), loses_replies=st.booleans(), is_cleared=st.booleans())
    def redis_fails_or_recovers(
        self, *, is_away: bool, loses_replies: bool, is_cleared: bool
    ) -> None:
        self.store.is_away, self.store.loses_replies = is_away, loses_replies
        if is_cleared:
            self.store.clear()
            self.reported.clear()

    @precondition(lambda self: not self.store.is_away and not self.store.loses_replies)
    @rule()
    def all_have_told_and_heard(self) -> None:
        for _ in range(8):
            rounds(self.routers, 1)
            self.store.now += EXPIRE_SECONDS / 6
        rounds(self.routers, 2)
        for router in self.routers:
            assert len(router.peers.received.alive(router.now)) == 2
            for pod in "pq":
                self.assert_others_are_counted_once(router, pod)
        for name, (owner, told) in self.reported.items():
            # A router that is silent for long is given up, and reports that wait for it are counted.
            assert owner.get(name) is None or told.peers.relay.dropped
        self.reported.clear()

    def assert_others_are_counted_once(self, router: Router, pod: str) -> None:
        books = [
            other.bookings.ranks[pod, 0]
            for other in self.routers
            if other is not router and (pod, 0) in other.bookings.ranks
        ]
        told = router.peers.received.on(pod, 0, router.now)
        assert told.nanoseconds == sum(book.prefill() for book in books)
        assert told.waiting == sum(len(book.waiting) for book in books)
        assert told.in_flight == sum(len(book.in_flight) for book in books)
        assert told.uncached_tokens == sum(book.uncached_tokens for book in books)
        assert told.prompt_tokens == sum(book.prompt_tokens for book in books)
        assert told.context_tokens == sum(book.context_tokens for book in books)

    @invariant()
    def no_load_is_less_than_nothing_and_nothing_ends_twice(self) -> None:
        for router in self.routers:
            for pod in "pq":
                load = router.load(pod)
                assert load.wait >= 0
                assert 0 <= load.waiting <= load.in_flight
                assert 0 <= load.waiting_uncached_tokens <= load.waiting_prompt_tokens
                assert load.waiting_prompt_tokens <= load.context_tokens
            router.check()
            assert len(router.ended) == len(set(router.ended))

    def teardown(self) -> None:
        """All end, some without a word: nothing of them stays."""
        self.store.is_away = self.store.loses_replies = False
        self.store.run(self.routers[0].peers.leave(self.routers[0].now))
        self.store.now += 600.0
        assert self.store.keys() == []


AnyFleet.TestCase.settings = settings(
    max_examples=examples(100), stateful_step_count=40, deadline=None
)
TestAnyFleet = AnyFleet.TestCase
