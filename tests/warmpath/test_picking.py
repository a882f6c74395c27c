"""A picker in a scheduler of its user's own: choices, bookings, beliefs and reports."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.indexer import consistent
from tests.router.consistent import check
from tests.warmpath.conftest import Clock, run_at_once
from warmpath import BookingTable, Index, NoPodError, Picker, PickTable, PodLoad, Prompt, Stored

IDS = list(range(64))
STORED = Stored.of([1, 2, 3, 4], IDS, block_size=16)


@pytest.fixture
def index(clock: Clock) -> Index:
    index = Index("m", max_bytes=1 << 24, clock=clock)
    index.add("a", address="10.0.0.1:8000")
    for pod in ("b", "c"):
        index.feed(pod, [])
    index.feed("a", [STORED])
    return index


@pytest.fixture
def picker(index: Index) -> Picker:
    numbers = iter(range(1000))
    return Picker(index, rng=Random(1), new_id=lambda: f"pick-{next(numbers)}")


def test_the_warm_pod_wins_and_the_pick_says_why(picker: Picker) -> None:
    picked = picker.pick([*IDS, 1])
    assert (picked.pod, picked.rank, picked.booking_id) == ("a", 0, "pick-0")
    best = picked.candidates[0]
    assert (best.address, best.matched_tokens, best.believed_tokens) == ("10.0.0.1:8000", 64, 0)
    assert best.cost < picked.candidates[1].cost
    assert best.ready
    assert picked.prompt_tokens == 65
    assert picked.reason.startswith("a has 64 of 65 tokens cached and nothing waiting")
    assert (picked.decode, picked.source) == ([], None)
    check(picker._picking)


def test_work_that_is_booked_drives_the_next_picks_away_until_its_end(index: Index) -> None:
    slow = PickTable(prefill_token_seconds=1.0)
    picker = Picker(index, pick=slow, rng=Random(1))
    cold = [[number] * 40 for number in range(1, 4)]
    picks = [picker.pick(prompt) for prompt in cold]
    assert {one.pod for one in picks} == {"a", "b", "c"}
    for one in picks:
        assert picker.report(one.booking_id, "first_token")
        assert picker.report(one.booking_id, "finished", cached_tokens=0, output_tokens=3)
    # What is booked nowhere is known nowhere.
    assert not picker.report(picks[0].booking_id, "finished")
    assert not picker.report("never", "failed")
    check(picker._picking)


def test_the_blocks_of_a_pick_count_at_once_and_are_gone_where_it_fails(picker: Picker) -> None:
    prompt = [7] * 33
    picked = picker.pick(prompt)
    found = {one.pod: one for one in picker.scorer.score(prompt)}
    assert found[picked.pod].believed_tokens == 32
    assert picker.report(picked.booking_id, "failed")
    assert [one.matched_tokens for one in picker.scorer.score(prompt)] == [0, 0, 0]
    check(picker._picking)


def test_beliefs_end_though_no_further_pick_is_made(picker: Picker, clock: Clock) -> None:
    picker.pick([7] * 33)
    clock.now += 1000.0
    assert [one.matched_tokens for one in picker.scorer.score([7] * 33)] == [0, 0, 0]


def test_a_pod_without_events_is_assumed_to_hold_what_was_sent_there(index: Index) -> None:
    index.add("blind", has_events=False)
    picker = Picker(index, rng=Random(1))
    one = picker.pick([5] * 200, pods=["blind"])
    picker.report(one.booking_id, "first_token")
    picker.report(one.booking_id, "finished")
    [score] = picker.scorer.score([5] * 200, pods=["blind"])
    assert score.believed_tokens == score.matched_tokens > 0


def test_loads_that_the_user_knows_count(picker: Picker) -> None:
    busy = PodLoad("a", running=200, waiting=200, kv_usage=0.99)
    assert picker.pick([*IDS, 1], loads=[busy]).pod != "a"
    picker.observe(PodLoad("b", waiting=500, running=500), PodLoad("nowhere", running=1))
    assert picker.pick([*IDS, 1]).pod == "c"


def test_a_shadow_pick_is_booked_where_the_report_says(picker: Picker) -> None:
    picked = picker.pick([*IDS, 1], shadow=True)
    assert picked.pod == "a"
    assert picker.report(picked.booking_id, "started", pod="b")
    found = {one.pod: one for one in picker.scorer.score([*IDS, 1])}
    assert found["b"].believed_tokens == 64
    check(picker._picking)


def test_sessions_roles_and_names_are_those_of_the_router(index: Index) -> None:
    index.add("prefill", role="prefill")
    index.add("decode", role="decode")
    picker = Picker(index, rng=Random(1))
    apart = picker.pick([*IDS, 1], disaggregated=True, booking_id="mine", session="s")
    assert apart.booking_id == "mine"
    assert "decode" not in {one.pod for one in apart.candidates}
    assert "prefill" not in {one.pod for one in apart.decode}
    busy = PodLoad("a", running=200, waiting=200)
    again = picker.pick([*IDS, 1], booking_id="mine", pods=["a", "b"], loads=[busy])
    assert (again.pod, again.source and again.source.pod) == ("b", "a")
    assert again.source is not None
    assert (again.source.address, again.source.matched_tokens) == ("10.0.0.1:8000", 64)


def test_a_removed_pod_is_not_picked_and_nothing_of_it_is_kept(
    picker: Picker, index: Index
) -> None:
    prompt = [*IDS, 1]
    picked = picker.pick(prompt)
    index.remove("a")
    assert picker.pick(prompt).pod in ("b", "c")
    assert picker.report(picked.booking_id, "finished")
    check(picker._picking)
    for pod in ("b", "c"):
        index.remove(pod)
    with pytest.raises(NoPodError, match="no pod serves 'm'"):
        picker.pick(prompt)


def test_a_pick_among_pods_that_are_not_there_says_so(picker: Picker) -> None:
    with pytest.raises(NoPodError, match="none of the 1 named pods serves 'm'"):
        picker.pick(IDS, pods=["nowhere"])


def test_ready_pods_go_before_those_whose_events_have_ended(
    picker: Picker, index: Index, clock: Clock
) -> None:
    index.disconnected("a")
    clock.now += 5.0
    assert "a" not in {one.pod for one in picker.pick([*IDS, 1]).candidates}
    assert not picker.pick([*IDS, 1], pods=["a"]).candidates[0].ready


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda p: p.pick([]), "tokens: are none; at least one is needed"),
        (lambda p: p.pick([1 << 32]), "tokens: a token id must be an unsigned 32-bit integer"),
        (lambda p: p.pick("text"), "text: needs a tokenizer"),
        (lambda p: p.pick(Prompt(chat_body=b"{}")), "tokens: the prompt has none"),
        (lambda p: p.pick(Prompt([1], model="other")), "model: is 'other'; the index has 'm'"),
        (lambda p: p.pick(Prompt([1], lora="l" * 2000)), "lora: is longer than 1024 bytes"),
        (lambda p: p.pick([1], policy="none"), "no policy 'none'; known: "),
        (lambda p: p.pick([1], session="s" * 257), "session: is longer than 256 characters"),
        (lambda p: p.pick([1], booking_id="a b"), "booking_id: has a character that is not print"),
        (lambda p: p.pick([1], booking_id="0123456789ab-0123456789abcdef"), "booking_id: has the form of a router's own booking ids"),
        (lambda p: p.report("x", "over"), "event: is 'over'; give started, first_token, finished"),
        (lambda p: p.report("x", "finished", cached_tokens=-5), "cached_tokens is -5; it must be 0 to"),
        (lambda p: p.report("x", "finished", output_tokens=-9), "output_tokens is -9; it must be 0 to"),
        (lambda p: p.report("x", "started", pod="nowhere"), "pod: is 'nowhere'; the router knows no"),
        (lambda p: p.report("x", "finished", cached_tokens=2, prompt_tokens=1), "cached_tokens: is 2; the prompt has 1 tokens"),
        (lambda _: PodLoad("a", running=-1), "the load of pod 'a': running is -1, not 0 or more"),
        (lambda _: PodLoad("a", kv_usage=1.5), r"kv_usage is 1\.5, not 0 to 1"),
        (lambda _: PodLoad("a", age=-1.0), "age is -1.0 s, not 0 or more"),
        (lambda _: PodLoad("a", running=1_000_001), "the load of pod 'a': it has more than 1000000 running"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(
    picker: Picker, call: Callable[[Picker], Any], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        call(picker)
    check(picker._picking)


@pytest.mark.parametrize(
    ("tables", "problem"),
    [
        ({"pick": PickTable(policy="none")}, "no policy 'none'; known: "),
        ({"pick": PickTable(prefill_token_seconds=0.0)}, r"pick: .*`\$\.prefill-token-seconds`"),
        ({"booking": BookingTable(max_bookings=0)}, r"booking: .*`\$\.max-bookings`"),
        ({"shared_tiers": ["vram"]}, "shared_tiers are .*; they must be of gpu, cpu, disk, remote"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(
    index: Index, tables: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        Picker(index, **tables)


def test_a_text_is_picked_for_by_its_tokens(index: Index, model_folder: Path) -> None:
    picker = Picker(index, tokenizer=model_folder, rng=Random(1))
    assert picker.pick("some words of a text").prompt_tokens > 3


def test_any_number_of_threads_may_pick_report_and_feed(picker: Picker, index: Index) -> None:
    went: Counter[str] = Counter()

    def work(number: int) -> None:
        for turn in range(40):
            picked = picker.pick([number, turn] * 20)
            went[picked.pod] += 1
            index.feed(picked.pod, [])
            picker.scorer.score([*IDS, 1])
            assert picker.report(picked.booking_id, "first_token")
            assert picker.report(picked.booking_id, "finished", cached_tokens=0)

    run_at_once(*(partial(work, number) for number in range(4)))
    assert went.total() == 160
    check(picker._picking)
    consistent.check(index.ingest)
