"""The picker: what it remembers of picks, what reports change, and that nothing leaks whatever is reported or lost."""

from dataclasses import replace
from unittest.mock import ANY, call, create_autospec

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.examples import examples
from tests.indexer import consistent
from tests.router.consistent import check
from tests.router.load.reports import load_of
from tests.router.pick.picker_parts import BLOCK, PROMPT, KeyedPrompt, Parts, factors_of, first
from tests.router.pick.weighed import choice, option, placed
from warmpath.router.load.engine_metrics import Observed
from warmpath.router.pick.eligible import NoPodError
from warmpath.router.pick.pick import PAUSE_SECONDS, DoubtedModels, End, Witness
from warmpath.router.pick.report import Report, carry_out, check_event
from warmpath.router.pick.weigh import Traits
from warmpath.router.prompt.limits import BadRequestError
from warmpath.scorer.prefill import PrefillModel


def test_cache_that_was_counted_in_part_makes_no_pod_look_fast() -> None:
    parts = Parts(pods=0)
    parts.pods = [parts.blind("pod-0")]
    model = PrefillModel()
    for held in (0, *[PROMPT.tokens - 1] * 40):
        booking_id, choice = parts.choose()
        expected = choice.options[0].candidate
        assert expected.prefill >= model.seconds(PROMPT.tokens - held, held)
        # As fast as the model says, with all that was sent there still cached.
        parts.now += model.seconds(PROMPT.tokens - held, held)
        parts.answer(booking_id)
        parts.now += 10
    assert expected.prefill > 2 * model.seconds(PROMPT.tokens - held, held)
    assert factors_of(parts.calibration, "m", ["pod-0"]) == [1.0]


def test_what_ends_when_its_pod_is_gone_teaches_nothing_of_the_next_one_of_that_name() -> None:
    parts = Parts(pods=1)
    ids = []
    for _ in range(40):
        ids.append(parts.choose()[0])
        parts.now += 9.0
        parts.picker.first_token(ids[-1], parts.now)
    parts.picking.forget(parts.pods[0])
    for one in ids:
        assert parts.picker.ended(one, "finished", parts.now)
    assert factors_of(parts.calibration, "m", ["pod-0"]) == [1.0]


def test_a_session_begins_where_it_displaces_no_prompt_that_is_wanted() -> None:
    parts = Parts(pods=2)
    parts.pods = [replace(pod, blocks=300) for pod in parts.pods]
    for session, turn in ((1, 0), (1, 1), (2, 0), (2, 1)):
        begin = 10_000 * session
        asked = KeyedPrompt(range(begin, begin + 120 + turn))
        parts.served(prompt=asked, pods=parts.pods[:1])
    parts.served(prompt=KeyedPrompt(range(90_000, 90_010)), pods=parts.pods[1:])
    _, choice = parts.choose(prompt=PROMPT)
    assert first(choice) == "pod-1"
    assert (
        dict(choice.options[1].terms)["displaced"] > 0 == dict(choice.options[0].terms)["displaced"]
    )


def test_prefill_and_decode_pods_are_picked_in_one_call_by_their_roles() -> None:
    parts = Parts(pods=4, roles=["prefill", "prefill", "decode", "decode"])
    parts.warm(1, 100)
    parts.warm(3, 40)
    booking_id, choice = parts.choose(disaggregated=True)
    assert first(choice) == "pod-1"
    assert [one.candidate.pod for one in choice.decode] == ["pod-3", "pod-2"]
    assert parts.load(3).in_flight == 1
    parts.picker.first_token(booking_id, parts.now)
    assert parts.load(1).in_flight == 0
    parts.picker.ended(booking_id, "finished", parts.now)
    assert len(parts.bookings) == 0
    with pytest.raises(NoPodError, match="role decode"):
        parts.choose(disaggregated=True, pods=parts.pods[:2])


def test_the_oldest_pick_is_over_where_there_are_too_many() -> None:
    parts = Parts(most=3)
    ids = [parts.choose()[0] for _ in range(5)]
    assert len(parts.picker) == 3
    assert len(parts.bookings) == 3
    assert not parts.picker.ended(ids[0], "finished", parts.now)


def test_picks_that_are_never_reported_are_counted() -> None:
    parts = Parts(pods=1)
    parts.choose()
    parts.now += 600.0
    parts.picker.expire(parts.now)
    assert (len(parts.picker), len(parts.bookings)) == (0, 0)
    assert (parts.bookings.expired, parts.bookings.unreported) == (1, 1)


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
    assert choice.ask.tokens == PROMPT.tokens + 5000
    assert parts.wait(0) == pytest.approx(PrefillModel().seconds(5001, 1600))
    parts.now += 9.0
    for _ in range(20):
        parts.picker.first_token(booking_id, parts.now)
        booking_id, _ = parts.choose(unread=5000)
        parts.now += 9.0
    assert factors_of(parts.calibration, "m", ["pod-0"]) == [1.0]


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
    """Picks and reports in any order, lost and repeated, pods that go."""

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
    def pick(self, blocks: int, start: int, disaggregated: bool, **fields: object) -> None:
        # A key names all before it, so two prompts share keys only from their first blocks on.
        prompt = KeyedPrompt(range(1000 * start, 1000 * start + blocks))
        name, choice = self.parts.choose(prompt=prompt, disaggregated=disaggregated, **fields)
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
        self.parts.picker.found_cached(data.draw(st.sampled_from(self.names)), cached, None)

    @rule(data=st.data(), end=st.sampled_from(["finished", "failed"]))
    def ended(self, data: st.DataObject, end: str) -> None:
        name = data.draw(st.sampled_from(self.names))
        known = self.parts.picker.get(name) is not None
        assert self.parts.picker.ended(name, end, self.parts.now) == known  # type: ignore[arg-type]

    @rule(seconds=st.sampled_from([0.0, 0.01, 1.0, 40.0, 700.0, -0.5]))
    def time_passes(self, seconds: float) -> None:
        self.parts.now += seconds
        self.parts.picker.expire(self.parts.now)

    @rule(pod=st.integers(0, 2), what=st.sampled_from(["forget", "engine_ended"]))
    def a_pod_goes_or_its_engine_ends(self, pod: int, what: str) -> None:
        getattr(self.parts.picking, what)(self.parts.pods[pod])

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
            load = load_of(self.parts.bookings, pod.id, 0, self.parts.now)
            assert (load.wait, load.waiting, load.in_flight, load.context_tokens) == (0, 0, 0, 0)

    @invariant()
    def nothing_contradicts_itself(self) -> None:
        parts = self.parts
        check(parts.picking)
        consistent.check(parts.ingest)
        assert len(parts.picker) <= 20
        assert len(parts.believed) <= 6 * 2 * len(self.names)


TestAnyReports = AnyReports.TestCase
TestAnyReports.settings = settings(max_examples=examples(100), deadline=None)


def test_a_burst_that_one_step_computes_keeps_others_waiting_for_one_fixed_part() -> None:
    parts = Parts(pods=1)
    parts.warm(0, 100)
    base = PrefillModel().base
    for _ in range(30):
        burst = [parts.choose()[0] for _ in range(8)]
        parts.now += base
        for name in burst:
            parts.answer(name)
    for _ in range(8):
        parts.choose()
    assert base < parts.wait(0) < 2 * base


def test_reports_follow_a_pick_from_its_start_to_its_end() -> None:
    witness = create_autospec(Witness, instance=True)
    parts = Parts(witnesses=(witness,))
    placed = parts.picker.reserve(parts.ask(), parts.now)
    name = placed.booking_id
    told = [
        Report(name, "started", pod="pod-2"),
        Report(name, "first_token", cached_tokens=32, prompt_tokens=1601),
        Report(name, "finished", cached_tokens=48, output_tokens=5),
    ]
    assert [carry_out(report, parts.picker, parts.now) for report in told] == [True] * 3
    assert placed.went == ("pod-2", 0)
    assert witness.mock_calls == [
        call.picked(placed, ANY),
        call.started(placed),
        call.found_cached(placed, 32, 1601),
        call.first_token(placed, parts.now),
        call.ended(placed, "finished", parts.now),
    ]
    assert placed.output_tokens == 5
    assert not any(carry_out(report, parts.picker, parts.now) for report in told)
    check(parts.picking)


@pytest.mark.parametrize(
    ("report", "problem"),
    [
        (Report("a", "finished", cached_tokens=2, prompt_tokens=1), "cached_tokens: is 2; the prompt"),
        (Report("a", "started", pod="other"), "pod: is 'other'; the router knows no such pod"),
        (Report("a", "started", pod="pod-0", rank=1), "rank: is 1; the ranks of pod 'pod-0' are 0 to 0"),
        (Report("a", "started", pod="pod-0", rank=-1), "rank: is -1; the ranks of pod"),
    ],
)  # fmt: skip
def test_a_report_that_cannot_be_true_is_refused(report: Report, problem: str) -> None:
    with pytest.raises(BadRequestError, match=problem):
        check_event(report, Parts().pods)


def test_a_report_that_can_be_true_is_not_refused() -> None:
    pods = Parts().pods
    check_event(Report("a", "finished", cached_tokens=7), pods)
    check_event(Report("a", "started", pod="pod-2"), pods)
    # Only the start says where a request went.
    check_event(Report("a", "failed", pod="other"), pods)


@pytest.mark.parametrize(
    ("model", "traits", "end", "is_doubted"),
    [
        ("m", Traits("text", has_adapter=True), "failed", True),
        ("", Traits("ids"), "failed", True),
        ("m", Traits("text"), "failed", False),
        ("m", Traits("text", has_adapter=True), "finished", False),
        ("m", Traits("text", has_adapter=True), "expired", False),
    ],
)
def test_only_a_failed_request_that_named_no_base_model_is_a_reason(
    model: str, traits: Traits, end: End, is_doubted: bool
) -> None:
    doubted: list[str] = []
    one = placed(choice(option("a", 0)), model=model, traits=traits)
    DoubtedModels(doubted.append).ended(one, end, 5.0)
    assert doubted == [model] * is_doubted


def test_a_flood_of_failures_is_a_reason_once_in_a_while() -> None:
    doubted: list[str] = []
    doubts = DoubtedModels(doubted.append)
    traits = Traits("text", has_adapter=True)
    one, other = (placed(choice(option("a")), model=model, traits=traits) for model in ("m", ""))
    for _ in range(1000):
        doubts.ended(one, "failed", 5.0)
        doubts.ended(other, "failed", 5.0)
    assert doubted == ["m", ""]
    doubts.ended(one, "failed", 5.0 + 2 * PAUSE_SECONDS)
    assert doubted == ["m", "", "m"]
