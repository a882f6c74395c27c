"""Bookings shared between routers: each counts all that are alive once, whatever is lost."""

import msgspec
import pytest

from tests.router.peers.fake_store import FakeStore
from tests.router.peers.sharing_routers import NAMES, NUMBERS, PROMPT, Router, meet, rounds, seen
from tests.router.pick.picker_parts import KeyedPrompt, Parts, first
from warmpath.indexer.keys.key import pack_words
from warmpath.indexer.shared.redis.command import Command, CommandRefusedError, UnreachableError
from warmpath.router.load.other_routers import NOBODY
from warmpath.router.peers import booking_id
from warmpath.router.peers.exchange import HEARTBEAT_SECONDS
from warmpath.router.peers.received import EXPIRE_SECONDS, MOST_MARKED, RouterSums
from warmpath.scorer.candidate import Load


def test_a_router_says_what_keeps_it_from_redis_now_and_since_when() -> None:
    peers = Router(FakeStore()).peers
    for now, why in ((10.0, "nobody answers"), (20.0, "NOAUTH"), (30.0, "NOAUTH")):
        peers.answer([UnreachableError(why)] * len(peers.ask(now)), now)
        assert (peers.problem, peers.problem_since) == (why, 10.0)


def test_the_latest_pick_of_all_routers_has_the_highest_number(two: tuple[Router, Router]) -> None:
    one, other = two
    for pod in "pqp":
        one.book(pod=pod)
    rounds(two)
    other.book(pod="q")
    rounds(two)
    assert [one.load(pod).last_pick for pod in "pq"] == [3, 4]
    assert [other.load(pod).last_pick for pod in "pq"] == [3, 4]


def test_a_rank_computes_one_prefill_at_a_time_whoever_booked_it(
    two: tuple[Router, Router], store: FakeStore
) -> None:
    one, other = two
    one.book(2.0)
    store.now += 0.5
    name = other.book(4.0)
    rounds(two)
    store.now += 1.0
    for router in two:
        assert router.load().wait == pytest.approx(0.5 + 4.0), "the second one's turn has not come"
    assert other.first_token(name)
    rounds(two)
    store.now += 0.5
    for router in two:
        assert router.load().wait == pytest.approx(1.5), "the rank was free for it from then on"


def test_a_prompt_on_its_way_is_known_to_others_until_its_router_knows_better(
    two: tuple[Router, Router], store: FakeStore
) -> None:
    one, other = two
    one.book()
    ticket = one.believed.arrive("p", 0, PROMPT, expires=one.now + 60)
    rounds(two)
    assert other.peers.received.marks.match(PROMPT)["p", 0] > 180
    assert not one.peers.received.marks, "a router knows its own anyway"
    one.believed.withdraw(ticket)
    store.now += HEARTBEAT_SECONDS
    rounds(two)
    assert not other.peers.received.marks


def test_of_very_many_prompts_on_their_way_the_latest_are_told(
    two: tuple[Router, Router], store: FakeStore
) -> None:
    one, other = two
    for number in range(MOST_MARKED + 1):
        one.believed.arrive("p", 0, pack_words([number + 1]), expires=one.now + 60)
    store.now += HEARTBEAT_SECONDS
    rounds(two)
    marks = other.peers.received.marks
    assert not marks.match(pack_words([1]))
    assert marks.match(pack_words([2])) == {("p", 0): 1}
    assert marks.match(pack_words([MOST_MARKED + 1]))


def test_a_prompt_follows_one_with_the_same_beginning_that_another_router_sent() -> None:
    store = FakeStore()
    routers = [Parts(4, router=f"{next(NUMBERS):012x}") for _ in range(2)]
    prompt, later = KeyedPrompt(range(1, 1001)), KeyedPrompt(range(1, 1101))
    peers = [router.peers for router in routers if router.peers is not None]

    def meet() -> None:
        store.now += HEARTBEAT_SECONDS
        for one in peers * 2:
            one.answer(store.run(one.ask(store.now)), store.now)
        for router in routers:
            router.now = store.now

    meet()
    _, choice = routers[0].choose(prompt=prompt)
    meet()
    _, after = routers[1].choose(prompt=later)
    assert first(after) == first(choice)
    assert after.options[0].match.arriving_tokens > 0.9 * prompt.tokens


def test_nothing_is_written_anew_where_nothing_changed_but_a_sign_of_life_each_second(
    two: tuple[Router, Router], store: FakeStore
) -> None:
    one, _ = two
    one.book()

    def is_told() -> bool:
        asked = one.peers.ask(one.now)
        one.peers.answer(store.run(asked), one.now)
        return any(isinstance(it, Command) and it.words[0] == "SET" for it in asked)

    assert [is_told() for _ in range(3)] == [True, False, False]
    store.now += HEARTBEAT_SECONDS
    assert [is_told() for _ in range(2)] == [True, False]


def test_what_a_dead_router_booked_and_sent_vanishes_in_three_seconds(
    two: tuple[Router, Router], store: FakeStore
) -> None:
    one, other = two
    one.book()
    one.believed.arrive("p", 0, PROMPT, expires=one.now + 60)
    rounds(two)
    assert other.peers.received.marks
    assert (other.load().in_flight, len(other.peers.received.alive(other.now))) == (1, 1)
    for _ in range(4):
        store.now += EXPIRE_SECONDS / 4
        other.round()
    assert other.load() == Load()
    assert len(other.peers.received.alive(other.now)) == 0
    assert other.peers.received.on("p", 0, other.now) is NOBODY
    assert not other.peers.received.marks


def test_what_an_ended_router_booked_counts_until_engines_tell_of_it(
    two: tuple[Router, Router], store: FakeStore
) -> None:
    one, other = two
    booked = one.book()
    rounds(two)
    store.now += HEARTBEAT_SECONDS / 2
    store.run(one.peers.leave(one.now))
    begun = Router(store, 100.0)
    others = [other, begun]
    rounds(others)
    assert [router.load().in_flight for router in others] == [1, 1]
    assert not other.peers.hand_on(booked, b"report", other.now), "nobody reads its reports"
    store.now += EXPIRE_SECONDS * 0.7
    rounds(others)
    seen(other, running=1)
    assert [router.load().in_flight for router in others] == [1, 1]
    store.now += EXPIRE_SECONDS * 0.4
    rounds(others)
    assert [router.load().in_flight for router in others] == [1, 0], (
        "no engine was asked by the second"
    )
    seen(other, running=0)
    assert other.load().in_flight == 0


def test_what_was_told_counts_no_longer_when_redis_is_away_for_three_seconds(
    two: tuple[Router, Router], store: FakeStore
) -> None:
    one, other = two
    one.book()
    rounds(two)
    store.is_away = True
    for left in (1, 0):
        store.now += EXPIRE_SECONDS / 2
        other.round()
        assert other.load().in_flight == left
    assert not other.peers.is_connected
    assert other.peers.failures == 2
    store.is_away = False
    store.clear()
    meet(two)
    assert other.load().in_flight == 1
    assert other.peers.is_connected


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"nonsense",
        msgspec.msgpack.encode([1, 0, [["p", 0, 0, 0, -1, 0, 0, 0, 0, [0] * 5, None, None]]]),
        # One waits, and none is in flight.
        msgspec.msgpack.encode([1, 0, [["p", 0, 9, 1, 0, 1, 1, 1, 0, [0] * 5, [0, 9], None]]]),
        # More tokens are to be computed than there are.
        msgspec.msgpack.encode([1, 0, [["p", 0, 9, 1, 1, 2, 1, 1, 0, [0] * 5, [0, 9], None]]]),
        msgspec.msgpack.encode([1, 0, [["p", 0, 0, 0, 1, 0, 0, 1, 0, [0] * 5, None, None]] * 2]),
        b"\xc0" * (5 << 20),
        # A prompt of 500 blocks with one mark, one without a block, and too many of them.
        msgspec.msgpack.encode([1, 0, [], False, [["p", 0, 500, bytes(8)]]]),
        msgspec.msgpack.encode([1, 0, [], False, [["p", 0, 0, b""]]]),
        msgspec.msgpack.encode([1, 0, [], False, [["p", 0, 1, bytes(8)]] * (MOST_MARKED + 1)]),
        # More requests, or tokens, than fit into an answer.
        msgspec.msgpack.encode([1, 0, [["p", 0, 0, 0, 1 << 33, 0, 0, 0, 0, [0] * 5, None, None]]]),
        msgspec.msgpack.encode([1, 0, [["p", 0, 0, 0, 1, 0, 0, 1 << 62, 0, [0] * 5, None, None]]]),
        # Pick 2^63 - 1: whoever overtook it would tell what nobody can read.
        msgspec.msgpack.encode([1, (1 << 63) - 1, []]),
    ],
)
def test_what_cannot_be_is_passed_over_and_counted(
    two: tuple[Router, Router], store: FakeStore, value: bytes
) -> None:
    one, other = two
    one.book()
    rounds(two)
    store.run([Command(("SET", NAMES.load(one.name), value, "PX", "3000"))])
    other.round()
    assert other.load() == Load()
    assert other.peers.received.malformed == 1


def test_a_name_that_no_router_has_is_not_read(
    two: tuple[Router, Router], store: FakeStore
) -> None:
    one, _ = two
    store.run([Command(("enrol", NAMES.routers, "{a}:pods", 3000, 60000))])
    store.now += HEARTBEAT_SECONDS
    rounds(two)
    read = [it.words[1] for it in one.peers.ask(one.now) if isinstance(it, Command)]
    assert not any("{a}" in str(key) for key in read)


def test_a_refusal_is_no_answer_and_the_rest_counts(two: tuple[Router, Router]) -> None:
    one, other = two
    one.book()
    one.round()
    asked = other.peers.ask(other.now)
    replies = other.store.run(asked)
    replies[0] = CommandRefusedError("OOM command not allowed")
    other.peers.answer(replies, other.now)
    assert other.load().in_flight == 1
    assert not other.peers.is_connected
    with pytest.raises(ValueError, match="replies do not match the commands of the round"):
        other.peers.answer(replies, other.now)


def test_booking_ids_name_their_router() -> None:
    router = booking_id.new_router()
    name = booking_id.new_id(router)
    assert booking_id.is_router(router)
    assert booking_id.router_of(name) == router
    assert booking_id.new_id(router) != name
    for other in (name + "\n", "\n" + name, name.upper() if name.upper() != name else "x", router):
        assert booking_id.router_of(other) == ""


def test_a_value_of_a_thousand_ranks_is_small() -> None:
    router = Router(FakeStore())
    for number in range(1000):
        router.book(pod=f"vllm-7f9c8d6b54-{number:05d}")
    [said] = [
        it.words[2]
        for it in router.peers.ask(router.now)
        if isinstance(it, Command) and it.words[0] == "SET"
    ]
    assert isinstance(said, bytes)
    assert len(said) < 100 * 1000
    assert len(msgspec.msgpack.decode(said, type=RouterSums).ranks) == 1000
