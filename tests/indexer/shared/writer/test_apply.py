"""The scripts against the model, on real servers: any history, retried and refused calls among it."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import redis
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.examples import examples
from tests.indexer.shared.redis_model import BucketModel, Change
from tests.servers.redis_server import RedisServer
from warmpath.indexer.shared.layout.names import BORN, WRITES, KeyNames, checkpoint
from warmpath.indexer.shared.redis.command import Call, Script, script
from warmpath.indexer.shared.writer.calls import (
    MOST_KEYS,
    Changes,
    ScriptOutcome,
    Status,
    apply_calls,
    fence_call,
    outcome,
    purge_calls,
)
from warmpath.lab.verify.structure import read_bucket

NAMES = KeyNames("t", buckets=1)
BUCKET = NAMES.bucket(0)
TTL = 86_400_000
FEW = 6
"""Records of a packed segment in these tests, so that segments spill all the time."""


class Servers:
    """Says calls to one server, with scripts that spill at `most` records."""

    def __init__(self, client: "redis.Redis[bytes]", most: int = 512) -> None:
        self.client = client
        apply = script("apply")
        source = apply.source.replace("MOST = 512", f"MOST = {most}")
        assert most == 512 or source != apply.source
        self._apply = Script("apply", source)

    def run(self, call: Call) -> object:
        source = self._apply.source if call.script.name == "apply" else call.script.source
        return self.client.eval(source, len(call.keys), *call.keys, *call.arguments)  # type: ignore[no-untyped-call]

    def outcome(self, call: Call) -> ScriptOutcome:
        return outcome(self.run(call))

    def fields(self) -> dict[bytes, bytes]:
        return self.client.hgetall(BUCKET)

    def packed(self) -> dict[bytes, bytes]:
        fields = self.fields().items()
        return {name: value for name, value in fields if len(name) in {8, 16} and value[0] == 1}


def word(number: int) -> int:
    """Return one of 32 words of bytes 1 and 2: one is found across two others, and bitmaps, all the time."""
    return int.from_bytes(bytes(1 + (number >> bit & 1) for bit in (0, 1, 2, 3, 4, 0, 0, 0)))


SEGMENTS = st.integers(0, 2)
SLOTS = st.integers(0, 19).map(word)
KEY = st.integers(0, 11).map(word)
KEYS = st.lists(KEY, max_size=10, unique=True)


@st.composite
def change(draw: st.DrawFn) -> Change:
    added = draw(KEYS)
    gone = [key for key in draw(KEYS) if key not in added]
    return draw(SEGMENTS), draw(SLOTS), added, gone


class AnyHistory(RuleBasedStateMachine):
    """Two pods' writers on one bucket of few segments; each may be a zombie's."""

    def __init__(self, servers: Servers) -> None:
        super().__init__()
        self.servers = servers
        servers.client.flushall()
        self.model = BucketModel(FEW)
        self.last: tuple[str, int, int, list[Change]] | None = None

    def _apply(self, pod: str, token: int, before: int, changes: list[Change]) -> None:
        arguments: list[bytes] = []
        for segment, slot, added, gone in changes:
            words = [[segment], [slot], added, gone]
            arguments += [b"".join(word.to_bytes(8, "little") for word in some) for some in words]
        # The plan makes one change of a segment and slot; the script takes any.
        [(_, call)] = apply_calls(NAMES, pod, token, {0: before}, {(0, 1): ([1], [])}, TTL)
        call = replace(call, arguments=(*call.arguments[:5], *arguments))
        assert self.servers.outcome(call) == ScriptOutcome(
            *self.model.apply(checkpoint(pod), token, before, changes)
        )

    @rule(pod=st.sampled_from("ab"), changes=st.lists(change(), max_size=4))
    def write(self, pod: str, changes: list[Change]) -> None:
        if checkpoint(pod) not in self.model.checkpoints:
            self.fence(pod, 1)
        token, count = self.model.checkpoints[checkpoint(pod)]
        self.last = pod, token, count, changes
        self._apply(*self.last)

    @rule(pod=st.sampled_from("ab"), segment=SEGMENTS, slot=SLOTS, key=KEY, adds=st.booleans())
    def write_one_key(self, pod: str, segment: int, slot: int, key: int, adds: bool) -> None:
        self.write(pod, [(segment, slot, [key] if adds else [], [] if adds else [key])])

    @rule(pod=st.sampled_from("ab"), data=st.data())
    def remove_one_key(self, pod: str, data: st.DataObject) -> None:
        held = [
            (segment, slot, key)
            for segment, keys in sorted(self.model.blocks.items())
            for key, slots in sorted(keys.items())
            for slot in sorted(slots)
        ]
        if held:
            segment, slot, key = data.draw(st.sampled_from(held))
            self.write(pod, [(segment, slot, [], [key])])

    @rule()
    def repeat_the_last_call(self) -> None:
        if self.last:
            self._apply(*self.last)

    @rule(
        pod=st.sampled_from("ab"),
        token=st.integers(0, 4),
        before=st.integers(0, 4),
        changes=st.lists(change(), max_size=2),
    )
    def write_out_of_turn(self, pod: str, token: int, before: int, changes: list[Change]) -> None:
        self._apply(pod, token, before, changes)

    @rule(pod=st.sampled_from("ab"), token=st.integers(1, 4))
    def fence(self, pod: str, token: int) -> None:
        call = fence_call(NAMES, 0, pod, token, TTL)
        assert self.servers.outcome(call) == ScriptOutcome(
            *self.model.fence(checkpoint(pod), token)
        )

    @rule(dead=st.sets(SLOTS, max_size=6))
    def purge(self, dead: set[int]) -> None:
        for call in purge_calls(NAMES, 0, self.servers.packed(), dead):
            self.servers.run(call)
        self.model.purge(dead)

    @invariant()
    def the_server_holds_what_the_model_holds(self) -> None:
        assert read_bucket(self.servers.fields(), most=FEW) == self.model.contents()

    def teardown(self) -> None:
        if self.model.checkpoints:
            assert 0 < self.servers.client.pttl(BUCKET) <= TTL


@pytest.fixture(params=["redis_server", "valkey_server"])
def client(request: pytest.FixtureRequest) -> Iterator["redis.Redis[bytes]"]:
    server: RedisServer = request.getfixturevalue(request.param)
    with server.client() as client:
        yield client


@pytest.mark.random
def test_any_history_leaves_what_the_model_says(client: "redis.Redis[bytes]") -> None:
    run_state_machine_as_test(
        lambda: AnyHistory(Servers(client, FEW)),
        settings=settings(max_examples=examples(50), stateful_step_count=40, deadline=None),
    )


@pytest.fixture
def written(client: "redis.Redis[bytes]") -> Servers:
    """Return a server with a bucket that pod "a" has claimed, and no other writer."""
    client.flushall()
    servers = Servers(client)
    assert servers.outcome(fence_call(NAMES, 0, "a", 1, TTL)).status is Status.APPLIED
    return servers


def say(servers: Servers, before: int, changes: Changes) -> list[ScriptOutcome]:
    calls = apply_calls(NAMES, "a", 1, {0: before}, changes, TTL)
    return [servers.outcome(call) for _, call in calls]


def test_a_segment_spills_past_512_blocks_and_ends_with_its_last(written: Servers) -> None:
    keys = [7 * number for number in range(600)]
    say(written, 0, {(0, 5): (keys[:512], ())})
    assert read_bucket(written.fields()).spilled == set()
    say(written, 1, {(0, 6): (keys[500:520], ())})
    bucket = read_bucket(written.fields())
    assert bucket.spilled == {0}
    assert bucket.segments[0] == {
        key: {slot for slot, first, last in ((5, 0, 512), (6, 500, 520)) if first <= at < last}
        for at, key in enumerate(keys[:520])
    }
    say(written, 2, {(0, 5): ((), keys), (0, 6): (keys[:1], keys[1:])})
    assert read_bucket(written.fields()).segments == {0: {keys[0]: {6}}}
    say(written, 3, {(0, 6): ((), keys)})
    assert written.fields().keys() == {BORN, WRITES, checkpoint("a")}


def test_a_plan_is_bounded_and_can_be_repeated_from_any_call(written: Servers) -> None:
    keys = list(range(1000, 9000))
    changes: Changes = {(0, slot): (keys, ()) for slot in range(1, 4)}
    calls = [call for _, call in apply_calls(NAMES, "a", 1, {}, changes, TTL)]
    assert len(calls) >= 3 * len(keys) // MOST_KEYS
    for call in calls:
        assert sum(len(bytes(word)) for word in call.arguments[5:]) <= 20 * MOST_KEYS  # type: ignore[arg-type]
    for call in calls[:4]:
        assert written.outcome(call).status is Status.APPLIED
    assert [written.outcome(call).status for call in calls] == [
        Status.DUPLICATE if number < 4 else Status.APPLIED for number in range(len(calls))
    ]
    held = read_bucket(written.fields()).segments[0]
    assert held == {key: {1, 2, 3} for key in keys}


def test_what_has_no_change_is_not_written(written: Servers) -> None:
    assert apply_calls(NAMES, "a", 1, {}, {(0, 1): ((), ())}, TTL) == []
    assert say(written, 0, {(0, 1): ((), [4, 5])}) == [ScriptOutcome(Status.APPLIED, 1, 1)]
    assert written.fields().keys() == {BORN, WRITES, checkpoint("a")}


def test_a_bucket_is_taken_where_redis_repeats_scripts_instead_of_what_they_wrote() -> None:
    """Redis 6 with `lua-replicate-commands no`."""
    with (
        RedisServer("redis", **{"lua-replicate-commands": "no"}) as server,
        server.client() as client,
    ):
        written = Servers(client)
        assert written.outcome(fence_call(NAMES, 0, "a", 1, TTL)).status is Status.APPLIED
        assert written.fields().keys() == {BORN, checkpoint("a")}


def test_a_call_that_fails_for_want_of_memory_has_no_effect(written: Servers) -> None:
    keys = list(range(100))
    say(written, 0, {(0, slot): (keys, ()) for slot in range(1, 20)})
    before = written.fields()
    written.client.config_set("maxmemory", 1)
    try:
        added: Changes = {(0, 30): (keys, ()), (1, 30): (keys, ()), (0, 3): ((), keys)}
        with pytest.raises(redis.ResponseError, match="maxmemory"):
            say(written, 1, added)
        assert written.fields() == before
        [call] = purge_calls(NAMES, 0, written.packed(), {4, 5})
        assert written.run(call) == 1
        # What frees memory passes, so that the index can shrink where it must.
        assert say(written, 1, {(0, 3): ((), keys), (0, 2): ((), keys[:1])})[0].status == 1
    finally:
        written.client.config_set("maxmemory", 0)
    held = read_bucket(written.fields()).segments[0]
    assert set().union(*held.values()) == set(range(1, 20)) - {3, 4, 5}
    say(written, 2, added)
    assert read_bucket(written.fields()).segments[1] == {key: {30} for key in keys}


@pytest.mark.parametrize("few", [1, 20], ids=["one key", "many"])
def test_a_value_of_another_kind_is_left_as_it_is(written: Servers, few: int) -> None:
    segment = (0).to_bytes(8, "little")
    written.client.hset(BUCKET, segment, b"\x09 of the future")
    with pytest.raises(redis.ResponseError, match="BADSEGMENT"):
        say(written, 0, {(0, 1): (list(range(few)), ())})
    assert written.client.hget(BUCKET, segment) == b"\x09 of the future"


def test_many_dead_slots_are_taken_out_in_steps(written: Servers) -> None:
    keys = list(range(40))
    slots = range(1, 1700)
    count = 0
    for slot in slots:
        count += len(say(written, count, {(0, slot): (keys if slot % 5 else keys[:3], ())}))
    dead = {slot for slot in slots if slot % 3}
    calls = purge_calls(NAMES, 0, written.packed(), dead)
    assert len(calls) == 2
    for call in calls:
        written.run(call)
    held = read_bucket(written.fields()).segments[0]
    assert set().union(*held.values()) == set(slots) - dead
    assert held[39] == {slot for slot in slots if slot % 5 and not slot % 3}


@pytest.mark.parametrize("columns", [1, 2, 8, 9, 10, 16, 17])
@pytest.mark.parametrize("one_by_one", [False, True])
def test_a_slot_that_leaves_a_segment_leaves_the_others(
    written: Servers, columns: int, *, one_by_one: bool
) -> None:
    keys = [word(number) for number in range(20)]
    slots = [word(number) for number in range(columns)]
    held = {
        key: {slot for at, slot in enumerate(slots) if (n + at) % 3} for n, key in enumerate(keys)
    }
    count = 0
    for slot in slots:
        wanted = [key for key in keys if slot in held[key]]
        for leaving in (False, True, False):
            for some in [[key] for key in wanted] if one_by_one else [wanted]:
                change: Changes = {(0, slot): ((), some) if leaving else (some, ())}
                assert say(written, count, change)[0].status is Status.APPLIED
                count += 1
            if leaving:
                there = set(slots[: slots.index(slot)])
                found = read_bucket(written.fields()).segments.get(0, {})
                assert found == {key: held[key] & there for key in keys if held[key] & there}
    for slot in [*slots[::2], *slots[1::2]]:
        say(written, count, {(0, slot): ((), keys)})
        count += 1
        for slots_left in held.values():
            slots_left.discard(slot)
        found = read_bucket(written.fields()).segments.get(0, {})
        assert found == {key: left for key, left in held.items() if left}
