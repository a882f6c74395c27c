"""What a pass removes, and what it never does, whatever goes on meanwhile.

One file: state machine and tests by hand sweep alike.
"""

import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.examples import examples
from tests.indexer.shared.asked_server import AskedServer
from tests.indexer.shared.model_writer import ModelWriter, content
from warmpath.indexer.shared.layout.names import KeyNames, checkpoint
from warmpath.indexer.shared.layout.record import SLOTS_OF_A_CLAIM
from warmpath.indexer.shared.redis.command import Call, Command, Reply, good, script
from warmpath.indexer.shared.sweep.mend import Swept
from warmpath.indexer.shared.sweep.one_pass import REMEMBERED_MS, Pass

PODS = ("one", "two/2")
SEGMENTS = (0, 1, 2, 5)
KEYS = st.sets(st.integers(100, 104), max_size=5)
_PREFIXES = itertools.count()


class OnePass:
    """A pass under way. With `stale`, records are answered as they once were."""

    def __init__(
        self, does: AskedServer, names: KeyNames, stale: dict[str, Reply] | None = None
    ) -> None:
        self.swept = Swept()
        self._does = does
        self._stale = stale or {}
        self._steps = Pass(names, self.swept).steps()
        self.asked = next(self._steps)
        self.is_over = False

    def step(self) -> None:
        """Do what is asked now."""
        replies = [good(self._answer(one)) for one in self.asked]
        try:
            self.asked = self._steps.send(replies)
        except StopIteration:
            self.is_over = True

    def _answer(self, one: Command | Call) -> Reply:
        if isinstance(one, Command) and one.words[0] == "HMGET":
            stale = self._stale.get(str(one.words[1]))
            if stale is not None:
                return stale
        return self._does.do(one)

    def finish(self) -> Swept:
        while not self.is_over:
            self.step()
        return self.swept


class Sweeping(RuleBasedStateMachine):
    """Writers and up to two passes, each doing one atomic step after the other in any order."""

    does: AskedServer
    lies = False

    @initialize()
    def begin(self) -> None:
        self.names = KeyNames(f"p{next(_PREFIXES)}", buckets=2)
        # The second one has been lost from the list of pods.
        self.writers = [
            ModelWriter(self.does, self.names, pod, n, enlists=n == 0) for n, pod in enumerate(PODS)
        ]
        self.passes: list[OnePass] = []
        self.records: dict[str, Reply] = {}

    @rule(n=st.integers(0, 1))
    def claim(self, n: int) -> None:
        self.writers[n].claim()

    @precondition(lambda self: any(not w.is_lost and w.fenced < 2 for w in self.writers))
    @rule()
    def fence(self) -> None:
        for writer in self.writers:
            if not writer.is_lost and writer.fenced < self.names.buckets:
                writer.fence()
                return

    @precondition(lambda self: any(w.may_write for w in self.writers))
    @rule(
        n=st.integers(0, 1), place=st.integers(0, 2), segment=st.sampled_from(SEGMENTS), keys=KEYS
    )
    def write(self, n: int, place: int, segment: int, keys: set[int]) -> None:
        writer = self.writers[n]
        place = min(place, len(writer.places))
        alive = place == len(writer.places) or writer.places[place] is not None
        if writer.may_write and alive and (place < len(writer.places) or keys):
            writer.write(place, segment, keys)

    @precondition(lambda self: any(w.may_write for w in self.writers))
    @rule(n=st.integers(0, 1))
    def tell(self, n: int) -> None:
        if self.writers[n].may_write:
            self.writers[n].tell()

    @rule(n=st.integers(0, 1), place=st.integers(0, 2))
    def drop(self, n: int, place: int) -> None:
        writer = self.writers[n]
        if writer.published and not writer.is_lost and writer.has_record() and place in writer.held:
            writer.drop(place)

    @precondition(lambda self: any(w.token for w in self.writers))
    @rule(n=st.integers(0, 1))
    def lease_is_over(self, n: int) -> None:
        if self.writers[n].token:
            self.writers[n].record_ends()
            self.writers[n].earlier = None

    @precondition(lambda self: len(self.passes) < 2)
    @rule()
    def a_pass_begins(self) -> None:
        self.passes.append(OnePass(self.does, self.names))

    @precondition(lambda self: self.passes)
    @rule(which=st.integers(0, 1), count=st.integers(1, 12))
    def a_pass_goes_on(self, which: int, count: int) -> None:
        one = self.passes[which % len(self.passes)]
        for _ in range(count):
            if one.is_over:
                self.passes.remove(one)
                return
            one.step()

    @precondition(lambda self: self.passes)
    @rule()
    def a_sweeper_dies(self) -> None:
        self.passes.pop(0)

    @invariant()
    def nothing_that_lives_is_lost(self) -> None:
        found = content(self.does, self.names)
        for writer in self.writers:
            if not writer.is_lost and writer.has_record():
                wrong = writer.missing(found)
                assert not wrong or (self.lies and not writer.audit()), wrong

    def teardown(self) -> None:
        if not hasattr(self, "writers"):
            return
        for one in self.passes:
            one.finish()
        OnePass(self.does, self.names).finish()
        self.nothing_that_lives_is_lost()
        known = set()
        for writer in self.writers:
            if writer.has_record():
                known.add(writer.base)
                known |= {writer.earlier[0]} if writer.earlier else set()
        for slot in content(self.does, self.names):
            base, number = divmod(slot, SLOTS_OF_A_CLAIM)
            # A claim that is no longer in a record: nothing of it is left.
            if not self.lies:
                assert base in known or self._shown(base), (base, known)
                for writer in self.writers:
                    if writer.base == base and number < len(writer.places):
                        assert writer.places[number] is not None

    def _shown(self, base: int) -> bool:
        """Whether a record shows the base still: a claim's that is lost, or an earlier one's."""
        for pod in PODS:
            said = self.does.do(Command(("HMGET", self.names.record(pod), "claim", "building")))
            if any(str(base).encode() in (one or b"") for one in said):
                return True
        return False


class Lying(Sweeping):
    """The records that a pass reads may be an old master's."""

    lies = True

    @rule()
    def a_copy_is_cut_off(self) -> None:
        for pod in PODS:
            name = self.names.record(pod)
            self.records[name] = self.does.do(
                Command(("HMGET", name, "token", "claim", "building"))
            )

    @precondition(lambda self: len(self.passes) < 2 and self.records)
    @rule()
    def a_pass_begins_at_the_copy(self) -> None:
        self.passes.append(OnePass(self.does, self.names, dict(self.records)))


@pytest.mark.random
@pytest.mark.parametrize("machine", [Sweeping, Lying])
def test_nothing_that_lives_is_lost_and_what_is_dead_goes(
    machine: type[Sweeping], does: AskedServer
) -> None:
    machine.does = does
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=examples(100), stateful_step_count=50, deadline=None),
    )


@pytest.fixture
def does(asked_server: AskedServer) -> AskedServer:
    return asked_server


@pytest.fixture
def names(prefix: str) -> KeyNames:
    return KeyNames(prefix, buckets=2)


def published(does: AskedServer, names: KeyNames, pod: str = "one", number: int = 0) -> ModelWriter:
    writer = ModelWriter(does, names, pod, number)
    writer.begin()
    for segment in SEGMENTS:
        writer.write(0, segment, {segment, segment + 10})
    writer.tell()
    return writer


def test_a_claim_that_begins_under_a_pass_loses_nothing(does: AskedServer, names: KeyNames) -> None:
    """At each step of the pass once."""
    published(does, names, "gone", 1).record_ends()
    for before in itertools.count():
        one = OnePass(does, names)
        for _ in range(before):
            if not one.is_over:
                one.step()
        ends = one.is_over
        writer = published(does, names, "new", 10 + before)
        one.finish()
        assert writer.missing(content(does, names)) == []
        assert writer.audit()
        if ends:
            break
    assert before > 10


def test_pods_that_names_pods_has_lost_are_found_by_their_checkpoints(
    does: AskedServer, names: KeyNames
) -> None:
    lives, gone = published(does, names, "lives", 1), published(does, names, "gone", 2)
    gone.record_ends()
    assert does.do(Command(("HKEYS", names.pods))) == []
    OnePass(does, names).finish()
    assert lives.missing(content(does, names)) == []
    assert {slot // SLOTS_OF_A_CLAIM for slot in content(does, names)} == {lives.base}
    assert sorted(does.do(Command(("HKEYS", names.pods)))) == [b"gone", b"lives"]


def test_a_record_of_an_old_master_removes_nothing_of_a_newer_claim(
    does: AskedServer, names: KeyNames
) -> None:
    writer = published(does, names)
    name = names.record("one")
    old = does.do(Command(("HMGET", name, "token", "claim", "building")))
    newer = published(does, names, "one", 7)
    newer.earlier = None
    one = OnePass(does, names, {name: old})
    swept = one.finish()
    assert swept.doubted == 2
    assert newer.missing(content(does, names)) == []
    assert newer.audit()
    assert writer.base != newer.base


def test_a_record_that_is_wrongly_taken_for_gone_is_found_by_its_writers_next_audit(
    does: AskedServer, names: KeyNames
) -> None:
    writer = published(does, names)
    gone = [None, None, None]
    OnePass(does, names, {names.record("one"): gone}).finish()
    # Its pod is known by its checkpoints alone, and those went first.
    assert not writer.audit()


def test_a_pod_is_forgotten_an_hour_after_its_record_was_last_there(
    does: AskedServer, names: KeyNames
) -> None:
    now, hour = 1_000_000.0, REMEMBERED_MS / 1000
    does.clock = lambda: now
    writer = published(does, names)
    does.do(Command(("HSET", names.pods, "one", round(1000 * now))))
    now += 2 * hour
    assert OnePass(does, names).finish().forgotten == 0
    writer.record_ends()
    now += hour - 1
    assert OnePass(does, names).finish().forgotten == 0
    assert does.do(Command(("HKEYS", names.pods))) == [b"one"]
    now += 2
    assert OnePass(does, names).finish().forgotten == 1
    assert does.do(Command(("HKEYS", names.pods))) == []
    assert content(does, names) == {}


def test_a_pod_claimed_while_it_is_being_forgotten_stays(
    does: AskedServer, names: KeyNames
) -> None:
    now = 1_000_000.0
    does.clock = lambda: now
    published(does, names).record_ends()
    does.do(Command(("HSET", names.pods, "one", round(1000 * now))))
    now += 2 * REMEMBERED_MS / 1000
    one = OnePass(does, names)
    for _ in range(4):
        one.step()
    writer = published(does, names, "one", 3)
    does.do(Command(("HSET", names.pods, "one", round(1000 * now))))
    assert one.finish().forgotten == 0
    assert does.do(Command(("HKEYS", names.pods))) == [b"one"]
    assert writer.missing(content(does, names)) == []
    assert writer.audit()


def test_the_clock_of_pods_is_the_servers(does: AskedServer, names: KeyNames) -> None:
    published(does, names)
    does.do(Command(("HSET", names.pods, "one", 1, "two", 1)))
    swept = OnePass(does, names).finish()
    assert swept.forgotten == 1
    seconds, _ = does.do(Command(("TIME",)))
    one, two = does.do(Command(("HMGET", names.pods, "one", "two")))
    assert abs(int(one) - int(seconds) * 1000) < 60_000
    assert two is None


def test_a_gone_pods_checkpoints_go_at_once_and_the_number_of_its_claim_stays(
    does: AskedServer, names: KeyNames
) -> None:
    writer = ModelWriter(does, names, "gone", 1)
    for _ in range(3):
        writer.begin()
    writer.record_ends()
    assert OnePass(does, names).finish().retired == names.buckets
    later = ModelWriter(does, names, "gone", 2)
    later.claim()
    assert later.token == 4


def test_a_number_that_is_kept_is_the_highest_that_anything_has(
    does: AskedServer, names: KeyNames
) -> None:
    writer = ModelWriter(does, names, "gone", 1)
    writer.claim()
    writer.fence()
    writer.record_ends()
    client, key = does.client, names.fence("gone")
    for fence, kept in ((None, b"1"), (b"7", b"7"), (b"%d" % 10**12, b"1"), (b"x", b"1")):
        client.hset(names.bucket(0), checkpoint("gone"), "1:0")
        client.delete(key)
        if fence is not None:
            client.set(key, fence)
        OnePass(does, names).finish()
        assert client.get(key) == kept
        assert client.pttl(key) > 0


@pytest.mark.parametrize("is_listed", [True, False])
def test_what_died_since_the_pass_began_stays_for_who_still_believes_it(
    does: AskedServer, names: KeyNames, *, is_listed: bool
) -> None:
    published(does, names, "gone", 1).record_ends()
    ended = published(does, names, "ends", 2)
    if is_listed:
        does.do(Call(script("enlist"), (names.pods,), ("ends",)))
    one = OnePass(does, names)
    while one.asked:
        one.step()
    ended.record_ends()
    one.finish()
    assert {slot // SLOTS_OF_A_CLAIM for slot in content(does, names)} == {ended.base}
    OnePass(does, names).finish()
    assert content(does, names) == {}


def test_a_record_that_cannot_be_read_stops_the_pass(does: AskedServer, names: KeyNames) -> None:
    writer = published(does, names)
    before = content(does, names)
    one = OnePass(does, names, {names.record("one"): [b"1", b"{", None]})
    with pytest.raises(ValueError, match="the record of pod 'one' cannot be read"):
        one.finish()
    assert content(does, names) == before
    assert writer.audit()
