"""The picker: what it weighs, what it books, and that nothing leaks whatever is reported or lost."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from picker_parts import BLOCK, PROMPT, KeyedPrompt, Parts

from indexer.key import Chain
from indexer.pb.warmpath.watch.v1 import cache_watch_pb2 as pb
from indexer.trust import Level
from indexer.watched import WatchedRank
from indexer.word import pack_words
from router.engine_load import Observed
from router.pods import Pod, Status
from router.weigh import Choice, NoPodError
from scorer.policy import UnknownPolicyError
from scorer.prefill import PrefillModel


def first(choice: Choice) -> str:
    return choice.options[0].pod.id


def test_with_equal_load_the_warmest_wins() -> None:
    parts = Parts()
    parts.warm(0, 10)
    parts.warm(2, 60)
    choice = parts.weigh()
    assert [one.pod.id for one in choice.options] == ["pod-2", "pod-0", "pod-1"]
    assert [one.match.matched_tokens for one in choice.options] == [960, 160, 0]


def test_work_is_booked_before_the_answer_leaves_and_weighing_books_nothing() -> None:
    parts = Parts()
    before = parts.weigh()
    assert parts.weigh().options[0].cost == before.options[0].cost
    _, choice = parts.choose()
    pod = int(first(choice)[-1])
    assert parts.wait(pod) == pytest.approx(PrefillModel().seconds(PROMPT.tokens, 0))
    assert sum(parts.wait(other) for other in range(3)) == parts.wait(pod)


def test_a_prompt_on_its_way_counts_as_held_where_it_goes() -> None:
    parts = Parts()
    booking_id, choice = parts.choose()
    again = parts.weigh()
    there = next(one for one in again.options if one.pod.id == first(choice))
    assert there.match.arriving_tokens == 1600
    assert there.match.known_tokens == 0
    assert there.candidate.cached == 1600
    parts.picker.ended(booking_id, "failed", parts.now)
    assert all(one.match.matched_tokens == 0 for one in parts.weigh().options)


def test_a_request_whose_pod_has_gone_is_booked_where_it_goes_instead() -> None:
    parts = Parts(pods=2)
    booking_id, choice = parts.choose()
    gone = next(pod for pod in parts.pods if pod.id == first(choice))
    other = next(number for number, pod in enumerate(parts.pods) if pod is not gone)
    parts.picker.forget(gone)
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
    assert parts.weigh().options[0].match.matched_tokens == 1600
    parts.now += 0.2
    parts.picker.expire(parts.now)
    assert parts.weigh().options[0].match.matched_tokens == 0


def test_the_first_token_releases_the_prefill_and_the_end_the_rest() -> None:
    parts = Parts(pods=1)
    booking_id, _ = parts.choose()
    assert parts.picker.first_token(booking_id, parts.now)
    load = parts.bookings.load("pod-0", 0, parts.now)
    assert (load.wait, load.waiting, load.in_flight) == (0.0, 0, 1)
    assert parts.picker.first_token(booking_id, parts.now), "a repeated report changes nothing"
    assert parts.picker.ended(booking_id, "finished", parts.now)
    assert not parts.picker.ended(booking_id, "finished", parts.now)
    assert parts.bookings.load("pod-0", 0, parts.now).in_flight == 0
    assert parts.seen == ["picked", "first token", "finished"]


def test_a_request_that_went_elsewhere_is_booked_and_believed_there() -> None:
    parts = Parts(pods=2)
    parts.warm(0, 100)
    booking_id, choice = parts.choose()
    assert first(choice) == "pod-0"
    parts.picker.started(booking_id, parts.now, ("pod-1", 0))
    assert parts.wait(0) == 0
    assert parts.wait(1) == pytest.approx(PrefillModel().seconds(PROMPT.tokens, 0))
    found = {one.pod.id: one.match.arriving_tokens for one in parts.weigh().options}
    assert found == {"pod-0": 0, "pod-1": 1600}


def test_in_shadow_nothing_is_booked_before_it_is_said_where_the_request_went() -> None:
    parts = Parts(pods=2)
    parts.warm(0, 100)
    booking_id, choice = parts.choose(shadow=True)
    assert first(choice) == "pod-0"
    assert parts.wait(0) == parts.wait(1) == 0
    assert not any(one.match.arriving_tokens for one in parts.weigh().options)
    parts.picker.started(booking_id, parts.now, ("pod-1", 0))
    assert parts.wait(0) == 0 < parts.wait(1)
    [placed] = parts.placed
    assert placed.captured == 0
    assert placed.available == 1600


def test_a_session_stays_on_its_pod_where_costs_are_nearly_equal() -> None:
    parts = Parts(pods=8)
    booking_id, choice = parts.choose(session="s")
    parts.picker.ended(booking_id, "finished", parts.now)
    home = first(choice)
    for number in range(20):
        other = KeyedPrompt(range(1000 * number + 500, 1000 * number + 502))
        booking_id, choice = parts.choose(prompt=other, session="s")
        assert first(choice) == home
        parts.picker.ended(booking_id, "finished", parts.now)


def test_a_pod_without_events_is_known_by_what_was_sent_there() -> None:
    parts = Parts(pods=0)
    blind = [parts.ingest.add_blind(f"pod-{number}", 0) for number in range(2)]
    parts.pods = [
        Pod(f"pod-{number}", "", "m", (rank,), has_events=False)
        for number, rank in enumerate(blind)
    ]
    booking_id, choice = parts.choose()
    parts.picker.first_token(booking_id, parts.now)
    parts.picker.ended(booking_id, "finished", parts.now)
    parts.now += 60
    parts.picker.expire(parts.now)
    again = parts.weigh()
    assert first(again) == first(choice)
    best = again.options[0]
    assert best.trust.level is Level.COLD
    assert best.match.assumed_tokens == 1600
    assert best.match.believed_tokens == 1600
    assert 0 < best.candidate.cached < 1600, "what is only assumed is counted in part"
    parts.now += 600
    parts.picker.expire(parts.now)
    assert not any(one.match.matched_tokens for one in parts.weigh().options)


def test_cache_that_was_counted_in_part_makes_no_pod_look_fast() -> None:
    parts = Parts(pods=0)
    rank = parts.ingest.add_blind("pod-0", 0)
    parts.pods = [Pod("pod-0", "", "m", (rank,), has_events=False)]
    model = PrefillModel()
    for held in (0, *[PROMPT.tokens - 1] * 40):
        booking_id, choice = parts.choose()
        expected = choice.options[0].candidate
        assert expected.prefill >= model.seconds(PROMPT.tokens - held, held)
        # As fast as the model says, with all that was sent there still cached.
        parts.now += model.seconds(PROMPT.tokens - held, held)
        parts.picker.first_token(booking_id, parts.now)
        parts.picker.ended(booking_id, "finished", parts.now)
        parts.now += 10
    assert expected.prefill > 2 * model.seconds(PROMPT.tokens - held, held)
    assert parts.calibration.factor("pod-0", 0) == 1.0


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
    found = {one.pod.id: one.match.arriving_tokens for one in parts.weigh().options}
    assert found["fresh"] == 1600


def test_what_is_on_its_way_to_an_engine_that_begins_anew_is_not_believed_any_more() -> None:
    parts = Parts(pods=1)
    parts.choose()
    assert parts.weigh().options[0].match.arriving_tokens == 1600
    [rank] = parts.pods[0].ranks
    assert isinstance(rank, WatchedRank)
    parts.tell(rank, "exact", pb.Change(emptied=pb.Emptied()))
    assert parts.weigh().options[0].match.arriving_tokens == 0
    parts.choose()
    assert parts.weigh().options[0].match.arriving_tokens == 1600


def test_what_a_pod_held_counts_in_part_after_its_stream_broke_and_not_for_ever() -> None:
    parts = Parts(pods=1)
    parts.warm(0, 100)
    [rank] = parts.pods[0].ranks
    assert isinstance(rank, WatchedRank)
    rank.disconnected("cut")
    parts.now += 2
    parts.ingest.tick(100)
    assert rank.trust.level is Level.STALE
    assert parts.weigh().options[0].candidate.cached == 800
    parts.now += 601
    assert parts.weigh().options[0].candidate.cached == 0


def test_a_hit_in_a_shared_tier_counts_for_all_alike() -> None:
    parts = Parts(shared_tiers=frozenset({"remote"}))
    parts.warm(1, 50, tier="remote")
    found = {one.match.known_tokens for one in parts.weigh().options}
    assert found == {800}
    assert {one.match.tokens_by_tier["remote"] for one in parts.weigh().options} == {800}


def test_the_best_other_holder_is_named_where_it_holds_more() -> None:
    parts = Parts(pods=2)
    parts.warm(0, 100)
    assert parts.weigh().source is None
    for _ in range(40):
        parts.picker.choose(parts.ask(KeyedPrompt(range(9000, 9050)), pods=parts.pods[:1]), 1000.0)
    choice = parts.weigh()
    assert first(choice) == "pod-1"
    assert choice.source is not None
    assert choice.source.pod.id == "pod-0"


def test_prefill_and_decode_pods_are_picked_in_one_call_by_their_roles() -> None:
    parts = Parts(pods=4, roles=["prefill", "prefill", "decode", "decode"])
    parts.warm(1, 100)
    parts.warm(3, 40)
    booking_id, choice = parts.choose(disaggregated=True)
    assert first(choice) == "pod-1"
    assert [one.pod.id for one in choice.decode] == ["pod-3", "pod-2"]
    assert parts.bookings.load("pod-3", 0, parts.now).in_flight == 1
    parts.picker.first_token(booking_id, parts.now)
    assert parts.bookings.load("pod-1", 0, parts.now).in_flight == 0
    parts.picker.ended(booking_id, "finished", parts.now)
    assert len(parts.bookings) == 0
    with pytest.raises(NoPodError, match="role decode"):
        parts.choose(disaggregated=True, pods=parts.pods[:2])


def test_an_engine_that_has_more_to_do_than_we_know_is_passed_over() -> None:
    parts = Parts(pods=2)
    parts.loads.observe("pod-0", 0, Observed(running=30, waiting=20, kv_usage=0.9, at=parts.now))
    assert first(parts.weigh()) == "pod-1"
    parts.now += 6
    assert {first(parts.weigh()) for _ in range(30)} == {"pod-0", "pod-1"}


def test_a_pod_that_is_picked_for_want_of_a_better_one_is_said_to_be_none() -> None:
    parts = Parts(pods=1)
    assert "not known to be well" not in parts.weigh().reason
    parts.pods[0].status = Status(healthy=False, reason="no answer")
    assert parts.weigh().reason.endswith("It is not known to be well, and no other is.")


def test_an_idle_fleet_that_was_never_asked_is_not_taken_for_a_busy_one() -> None:
    assert Parts().weigh().utilisation == 0


def test_an_unknown_policy_is_refused_by_name() -> None:
    with pytest.raises(UnknownPolicyError, match=r"no policy 'best'; known: .*least-load"):
        Parts().weigh(policy="best")


def test_the_oldest_pick_is_over_where_there_are_too_many() -> None:
    parts = Parts(most=3)
    ids = [parts.choose()[0] for _ in range(5)]
    assert len(parts.picker) == 3
    assert len(parts.bookings) == 3
    assert not parts.picker.ended(ids[0], "finished", parts.now)


def test_what_a_pod_without_events_holds_is_counted_in_the_blocks_of_its_model() -> None:
    parts = Parts(pods=2)
    for number in range(2):
        parts.size_blocks(number, 64)
    blind = Pod("blind", "blind:80", "m", (parts.ingest.add_blind("blind", 0),), has_events=False)
    parts.weigh(pods=[*parts.pods, blind])
    parts.choose(prompt=SizedPrompt(641), pods=[blind])
    [told] = parts.weigh(policy="sglang", pods=[blind]).options
    assert told.candidate.known_tokens == 640


def test_an_engine_that_has_ended_holds_nothing_of_what_was_sent_before() -> None:
    parts = Parts(pods=1)
    parts.warm(0, 0, trust="cold")
    booking_id, _ = parts.choose()
    parts.picker.engine_ended(parts.pods[0])
    [option] = parts.weigh().options
    assert option.match.matched_tokens == 0
    assert parts.picker.ended(booking_id, "finished", parts.now)
    parts.believed.check()


class SizedPrompt(KeyedPrompt):
    """A prompt whose blocks have other keys in other sizes, as prompts have."""

    def __init__(self, tokens: int) -> None:
        super().__init__((), tokens)

    def chain(self, block_size: int, hash_seed: str, *, lookahead: bool = False) -> Chain:
        del hash_seed, lookahead
        blocks = (self.tokens - 1) // block_size
        keys = [1000 * block_size + block for block in range(blocks)]
        return Chain(0, b"", block_size, blocks, (), pack_words(keys))


def test_a_request_that_went_to_a_pod_with_larger_blocks_is_believed_there() -> None:
    for shadow in (False, True):
        parts = Parts(pods=2)
        parts.size_blocks(1, 64)
        prompt = SizedPrompt(641)
        booking_id, choice = parts.choose(prompt=prompt, shadow=shadow)
        other = choice.options[1].pod.id
        parts.picker.started(booking_id, parts.now, (other, 0))
        found = {
            one.pod.id: one.match.arriving_tokens for one in parts.weigh(prompt=prompt).options
        }
        assert found == {other: 640, first(choice): 0}


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
    assert parts.bookings.load("pod-0", 0, parts.now).in_flight == 1
    parts.picker.first_token(booking_id, parts.now)
    load = parts.bookings.load("pod-0", 0, parts.now)
    assert (load.waiting, load.in_flight) == (0, 1)
    parts.picker.ended(booking_id, "finished", parts.now)
    assert len(parts.bookings) == 0


def test_a_prompt_past_all_measure_is_placed_too() -> None:
    parts = Parts(prefill=PrefillModel(per_token=1.0))
    booking_id, _ = parts.choose(prompt=KeyedPrompt((), tokens=1_000_000))
    assert parts.picker.ended(booking_id, "finished", parts.now)


def test_a_prompt_of_which_no_token_is_known_is_placed_too() -> None:
    parts = Parts()
    prompt = KeyedPrompt(())
    prompt.tokens = 0
    booking_id, choice = parts.choose(prompt=prompt)
    assert choice.source is None
    assert parts.wait(int(first(choice)[-1])) > 0
    assert parts.picker.ended(booking_id, "finished", parts.now)


def test_what_of_a_text_was_not_tokenised_in_time_is_booked_as_estimated() -> None:
    parts = Parts(pods=1)
    parts.warm(0, 100)
    booking_id, choice = parts.choose(unread=5000)
    assert choice.prompt_tokens == PROMPT.tokens + 5000
    assert parts.wait(0) == pytest.approx(PrefillModel().seconds(5001, 1600))
    parts.now += 9.0
    for _ in range(20):
        parts.picker.first_token(booking_id, parts.now)
        booking_id, _ = parts.choose(unread=5000)
        parts.now += 9.0
    assert parts.calibration.factor("pod-0", 0) == 1.0


def test_what_is_remembered_of_picks_in_shadow_is_bounded_on_many_pods() -> None:
    parts = Parts(pods=40, most=10)
    ids = [parts.choose(shadow=True)[0] for _ in range(10)]
    assert len(parts.picker) == 2
    assert [name for name in ids if parts.picker.get(name)] == ids[-2:]
    assert parts.picker.ended(ids[-1], "finished", parts.now)
    assert parts.picker.ended(ids[-2], "finished", parts.now)
    for _ in range(20):
        parts.choose()
    assert len(parts.picker) == 10


class AnyReports(RuleBasedStateMachine):
    """Picks and reports in any order, lost and repeated, pods that go, clocks that jump."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = Parts(pods=3, roles=["both", "prefill", "decode"], most=20)
        self.names = ["unknown"]

    @rule(
        blocks=st.integers(0, 6),
        start=st.integers(1, 3),
        session=st.sampled_from(["", "a", "b"]),
        shadow=st.booleans(),
        disaggregated=st.booleans(),
        policy=st.sampled_from(["", "round-robin", "llmd-token", "sglang", "weighted"]),
    )
    def pick(
        self,
        blocks: int,
        start: int,
        session: str,
        shadow: bool,
        disaggregated: bool,
        policy: str,
    ) -> None:
        # A key names all before it, so two prompts share keys only from their first blocks on.
        prompt = KeyedPrompt(range(1000 * start, 1000 * start + blocks))
        name, choice = self.parts.choose(
            prompt=prompt,
            session=session,
            shadow=shadow,
            disaggregated=disaggregated,
            policy=policy,
        )
        assert len(choice.options) == (2 if disaggregated else 3)
        self.names.append(name)

    @rule(data=st.data(), pod=st.sampled_from(["", "pod-0", "pod-1", "gone"]))
    def started(self, data: st.DataObject, pod: str) -> None:
        name = data.draw(st.sampled_from(self.names))
        self.parts.picker.started(name, self.parts.now, (pod, 0) if pod else None)

    @rule(data=st.data())
    def first_token(self, data: st.DataObject) -> None:
        self.parts.picker.first_token(data.draw(st.sampled_from(self.names)), self.parts.now)

    @rule(data=st.data(), cached=st.integers(0, 100))
    def told(self, data: st.DataObject, cached: int) -> None:
        self.parts.picker.told(data.draw(st.sampled_from(self.names)), cached, None)

    @rule(data=st.data(), end=st.sampled_from(["finished", "failed"]))
    def ended(self, data: st.DataObject, end: str) -> None:
        name = data.draw(st.sampled_from(self.names))
        known = self.parts.picker.get(name) is not None
        assert self.parts.picker.ended(name, end, self.parts.now) == known  # type: ignore[arg-type]

    @rule(seconds=st.sampled_from([0.0, 0.01, 1.0, 40.0, 700.0, -0.5, -50.0, -5000.0]))
    def time_passes(self, seconds: float) -> None:
        self.parts.now += seconds
        self.parts.picker.expire(self.parts.now)

    @rule(pod=st.integers(0, 2))
    def a_pod_goes(self, pod: int) -> None:
        self.parts.picker.forget(self.parts.pods[pod])

    @rule(pod=st.integers(0, 2))
    def an_engine_ends(self, pod: int) -> None:
        self.parts.picker.engine_ended(self.parts.pods[pod])

    @rule(pod=st.integers(0, 2), size=st.sampled_from([BLOCK, 64]))
    def blocks_are_of_another_size(self, pod: int, size: int) -> None:
        self.parts.size_blocks(pod, size)

    @rule(pod=st.integers(0, 2), blocks=st.integers(0, 5), trust=st.sampled_from(["exact", "cold"]))
    def events_come(self, pod: int, blocks: int, trust: str) -> None:
        self.parts.warm(pod, blocks, trust=trust)

    @rule(pod=st.integers(0, 2), running=st.integers(0, 9), waiting=st.integers(0, 9))
    def metrics_come(self, pod: int, running: int, waiting: int) -> None:
        seen = Observed(running, waiting, 0.5, self.parts.now)
        self.parts.loads.observe(f"pod-{pod}", 0, seen)

    @precondition(lambda self: len(self.parts.picker) > 0)
    @rule()
    def all_are_over(self) -> None:
        for name in self.names:
            self.parts.picker.ended(name, "finished", self.parts.now)
        assert len(self.parts.picker) == 0
        assert len(self.parts.bookings) == 0
        for pod in self.parts.pods:
            load = self.parts.bookings.load(pod.id, 0, self.parts.now)
            assert (load.wait, load.waiting, load.in_flight, load.context_tokens) == (0, 0, 0, 0)

    @invariant()
    def nothing_contradicts_itself(self) -> None:
        parts = self.parts
        parts.picker.check()
        parts.bookings.check()
        parts.loads.check()
        parts.believed.check()
        parts.sessions.check()
        parts.calibration.check()
        parts.ingest.check()
        assert len(parts.picker) <= 20
        assert len(parts.believed) <= 6 * 2 * len(self.names)


TestAnyReports = AnyReports.TestCase
TestAnyReports.settings = settings(max_examples=100, deadline=None)
