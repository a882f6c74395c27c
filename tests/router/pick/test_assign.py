"""What is booked and believed where a pick goes, from its choice to its end."""

from collections import Counter

import pytest

from tests.indexer.consistent import check
from tests.router.pick.picker_parts import PROMPT, KeyedPrompt, Parts, SizedPrompt, first
from warmpath.indexer.keys.key import pack_words
from warmpath.indexer.trust import Level
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2 as pb
from warmpath.router.pods.table import Pod
from warmpath.scorer.prefill import PrefillModel


def test_a_prompt_on_its_way_counts_as_held_where_it_goes() -> None:
    parts = Parts()
    booking_id, choice = parts.choose()
    options = parts.weigh().options
    [there] = [one for one in options if one.candidate.pod == first(choice)]
    assert there.match.arriving_tokens == 1600
    assert there.match.known_tokens == 0
    assert there.candidate.cached == 1600
    parts.picker.ended(booking_id, "failed", parts.now)
    assert all(one.match.matched_tokens == 0 for one in parts.weigh().options)


def test_a_prompt_is_found_by_tokens_where_it_went_by_bytes_and_the_other_way_round() -> None:
    by_tokens, by_bytes = KeyedPrompt(range(1, 101)), KeyedPrompt(range(5001, 5051))
    by_tokens.by_bytes, by_bytes.is_blind = by_bytes, True
    for sent, sought in ((by_tokens, by_bytes), (by_bytes, by_tokens)):
        parts = Parts()
        booking_id, choice = parts.choose(prompt=sent)
        for _ in range(2):
            held = {one.candidate.pod: one.match for one in parts.weigh(prompt=sought).options}
            assert held.pop(first(choice)).matched_tokens == sought.tokens - 1
            assert not any(match.matched_tokens for match in held.values())
            parts.answer(booking_id)
        parts.now += 6
        parts.picker.expire(parts.now)
        # By then events have told which tokens are there, and never tell of bytes.
        held_tokens = parts.match(sought).matched_tokens
        assert held_tokens == (sought.tokens - 1 if sought is by_bytes else 0)


def siblings(requests: int, seconds: float) -> tuple[list[str], int]:
    """Pick for so many requests of one prompt of 8,192 tokens, `seconds` apart, on 8 idle pods.

    Return where they went, and how many of them had it to compute.
    """
    parts = Parts(pods=8, max_believed_blocks=1_000_000)
    prompt = KeyedPrompt(range(1, 513))
    pods, computing = [], 0
    for _ in range(requests):
        _, choice = parts.choose(prompt=prompt)
        pods.append(first(choice))
        computing += choice.options[0].candidate.cached < 8192
        parts.now += seconds
    return pods, computing


def test_siblings_that_come_at_once_wait_for_one_prefill() -> None:
    pods, computing = siblings(8, 0.0006)
    assert computing <= 2
    assert len(set(pods)) <= 2


def test_a_burst_that_one_pod_cannot_serve_spreads_and_each_pod_computes_it_once() -> None:
    pods, computing = siblings(500, 0.0002)
    counts = Counter(pods)
    assert computing == len(counts)
    assert max(counts.values()) <= 1.5 * 500 / 8 + 16, counts


def test_a_request_whose_pod_has_gone_is_booked_where_it_goes_instead() -> None:
    parts = Parts(pods=2)
    booking_id, choice = parts.choose()
    gone = int(first(choice)[-1])
    other = 1 - gone
    parts.picking.forget(parts.pods[gone])
    assert parts.wait(other) == 0
    parts.picker.started(booking_id, parts.now, (f"pod-{other}", 0))
    assert parts.wait(other) > 0
    parts.picker.ended(booking_id, "finished", parts.now)
    assert parts.wait(other) == 0
    assert len(parts.bookings) == 0


def test_arriving_blocks_are_believed_until_events_must_have_told() -> None:
    parts = Parts(pods=1)
    booking_id, _ = parts.choose()
    parts.picker.first_token(booking_id, parts.now)
    parts.now += 4.9
    assert parts.match().matched_tokens == 1600
    parts.now += 0.2
    parts.picker.expire(parts.now)
    assert parts.match().matched_tokens == 0


@pytest.mark.parametrize("is_early", [False, True])
def test_what_events_told_of_is_not_believed_any_more_when_they_tell_that_it_is_gone(
    is_early: bool,
) -> None:
    parts = Parts(pods=1)
    booking_id, _ = parts.choose()
    if is_early:
        parts.warm(0, 100)
    parts.picker.first_token(booking_id, parts.now)
    parts.warm(0, 100)
    parts.picker.ended(booking_id, "finished", parts.now)
    gone = pb.Keys(tier="gpu", keys=pack_words(list(range(51, 101))))
    parts.tell(parts.rank(0), "exact", pb.Change(gone=gone))
    match = parts.match()
    assert (match.known_tokens, match.arriving_tokens, match.matched_tokens) == (800, 0, 800)
    check(parts.believed)


def test_behind_blocks_that_a_rank_holds_only_the_rest_arrives_and_counts_while_it_holds_them() -> (
    None
):
    parts = Parts(pods=1)
    parts.warm(0, 60)
    booking_id, _ = parts.choose()
    held = [KeyedPrompt(range(1, end)) for end in (101, 81, 31)]
    assert [parts.match(one).matched_tokens for one in held] == [1600, 1280, 480]
    assert parts.believed._index.stats().entries == 40
    gone = pb.Keys(tier="gpu", keys=pack_words(list(range(51, 61))))
    parts.tell(parts.rank(0), "exact", pb.Change(gone=gone))
    assert parts.match().matched_tokens == 800
    parts.warm(0, 100)
    assert parts.match().matched_tokens == 1600
    parts.choose()
    assert len([*parts.believed.arrivals()]) == 1, "nothing arrives where all is held"
    parts.picker.started(booking_id, parts.now, ("pod-0", 0))
    parts.answer(booking_id)
    assert not [*parts.believed.arrivals()]
    check(parts.believed)


def store(parts: Parts, group: int, *keys: int) -> None:
    """Let the first pod, of a full-attention cache and a window in blocks twice as large, hold blocks."""
    groups = [
        pb.Group(number=0, kind="full_attention", block_size=16),
        pb.Group(number=1, kind="sliding_window", block_size=32, window=100),
    ]
    state = pb.RankState(trust="exact", reason="told", groups=groups)
    added = pb.Keys(tier="gpu", group=group, keys=pack_words(keys))
    parts.rank(0).take_delta(pb.Delta(changes=[pb.Change(added=added)], state=state))


def test_of_a_hybrid_cache_events_have_told_when_they_told_of_the_last_block_of_each() -> None:
    parts = Parts(pods=1)
    store(parts, 0)
    prompt = KeyedPrompt(range(1, 102))
    booking_id, _ = parts.choose(prompt=prompt)
    store(parts, 0, *range(1, 102))
    parts.answer(booking_id)
    assert parts.match(prompt).arriving_tokens == 1616
    # The window's own last block ends before the prompt's last.
    store(parts, 1, *range(94, 102, 2))
    parts.picker.expire(parts.now)
    match = parts.match(prompt)
    assert (match.known_tokens, match.arriving_tokens) == (1600, 0)


def test_what_events_tell_of_after_the_end_is_not_believed_any_more_either() -> None:
    parts = Parts(pods=1)
    parts.served()
    assert parts.match().arriving_tokens == 1600
    parts.warm(0, 100)
    parts.picker.expire(parts.now)
    assert parts.match().arriving_tokens == 0


def test_a_request_that_went_elsewhere_is_booked_and_believed_there() -> None:
    parts = Parts(pods=2)
    parts.warm(0, 100)
    booking_id, choice = parts.choose()
    assert first(choice) == "pod-0"
    parts.picker.started(booking_id, parts.now, ("pod-1", 0))
    assert parts.wait(0) == 0
    assert parts.wait(1) == pytest.approx(PrefillModel().seconds(PROMPT.tokens, 0))
    found = parts.arriving()
    assert found == {"pod-0": 0, "pod-1": 1600}


def test_a_pod_without_events_is_known_by_what_was_sent_there() -> None:
    parts = Parts(pods=0)
    parts.pods = [parts.blind(f"pod-{number}") for number in range(2)]
    chosen = parts.served()
    parts.now += 60
    parts.picker.expire(parts.now)
    again = parts.weigh()
    assert first(again) == chosen
    best = again.options[0]
    assert best.trust.level is Level.COLD
    assert best.match.assumed_tokens == 1600
    assert best.match.believed_tokens == 1600
    assert 0 < best.candidate.cached < 1600, "what is only assumed is counted in part"
    parts.now += 600
    parts.picker.expire(parts.now)
    assert not any(one.match.matched_tokens for one in parts.weigh().options)


def test_what_is_on_its_way_to_a_pod_without_events_yet_is_still_believed_when_they_come() -> None:
    parts = Parts(pods=1)
    fresh = parts.ingest.watch("fresh", 0)
    parts.pods.append(Pod("fresh", "", "m", (fresh,)))
    parts.choose()
    while first(parts.weigh()) != "fresh":
        parts.choose()
    parts.choose()
    fresh.connected()
    parts.tell(fresh, "exact")
    assert parts.arriving()["fresh"] == 1600


def test_what_is_on_its_way_to_an_engine_that_begins_anew_is_not_believed_any_more() -> None:
    parts = Parts(pods=1)
    parts.choose()
    assert parts.match().arriving_tokens == 1600
    parts.tell(parts.rank(0), "exact", pb.Change(emptied=pb.Emptied()))
    assert parts.match().arriving_tokens == 0
    parts.choose()
    assert parts.match().arriving_tokens == 1600


def test_an_engine_that_has_ended_holds_nothing_of_what_was_sent_before() -> None:
    parts = Parts(pods=1)
    parts.warm(0, 0, trust="cold")
    booking_id, _ = parts.choose()
    parts.picking.engine_ended(parts.pods[0])
    assert parts.match().matched_tokens == 0
    assert parts.picker.ended(booking_id, "finished", parts.now)
    check(parts.believed)


def test_a_request_that_went_to_a_pod_with_larger_blocks_is_believed_there() -> None:
    for shadow in (False, True):
        parts = Parts(pods=2)
        parts.size_blocks(1, 64)
        prompt = SizedPrompt(641)
        booking_id, choice = parts.choose(prompt=prompt, shadow=shadow)
        other = choice.options[1].candidate.pod
        parts.picker.started(booking_id, parts.now, (other, 0))
        assert parts.arriving(prompt) == {other: 640, first(choice): 0}


def test_room_kept_for_decoding_is_no_prefill_of_the_rank_that_decodes() -> None:
    parts = Parts(pods=2, roles=["prefill", "both"])
    parts.choose(prompt=KeyedPrompt(range(9000, 9900)), pods=parts.pods[1:])
    parts.now += 0.5
    before = parts.wait(1)
    parts.choose(disaggregated=True)
    assert parts.wait(1) == before


def test_a_rank_that_prefills_and_decodes_a_request_has_it_once() -> None:
    parts = Parts(pods=1)
    booking_id, _ = parts.choose(disaggregated=True)
    assert parts.load(0).in_flight == 1
    parts.picker.first_token(booking_id, parts.now)
    assert (parts.load(0).waiting, parts.load(0).in_flight) == (0, 1)
    parts.picker.ended(booking_id, "finished", parts.now)
    assert len(parts.bookings) == 0


def test_a_prompt_past_all_measure_is_placed_too() -> None:
    parts = Parts(prefill_token_seconds=1.0)
    booking_id, _ = parts.choose(prompt=KeyedPrompt((), tokens=1_000_000))
    assert parts.picker.ended(booking_id, "finished", parts.now)
