"""Attribution: where prompt tokens went, by pod and model, and what the shadow would have saved."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.examples import examples
from tests.router.consistent import check
from tests.router.pick.weighed import BLOCK, TOKENS, choice, follow, option, placed
from warmpath.router.diagnosis.attribution import Attribution, Evidence, Row
from warmpath.router.pick.pick import Pick
from warmpath.router.pick.weigh import Traits
from warmpath.scorer.prefill import PrefillModel


def pick(attribution: Attribution, *, shadow: bool = False, model: str = "m") -> Pick:
    """Return a pick of `a`, which holds less than `b`."""
    made = choice(option("a", 800), option("b", 960, wait=5.0))
    one = placed(made, shadow=shadow, model=model)
    attribution.picked(one, made)
    return one


def row(attribution: Attribution, pod: str = "a") -> Row:
    found = attribution.row(pod, "m")
    assert found is not None
    return found


def test_a_pick_counts_what_was_available_and_what_it_captured() -> None:
    attribution = Attribution()
    pick(attribution)
    pick(attribution)
    counted = row(attribution)
    assert (counted.requests, counted.prompt_tokens) == (2, 2 * TOKENS)
    assert (counted.available_tokens, counted.captured_tokens) == (2 * 960, 2 * 800)
    assert counted.average_tokens == 2 * 880
    assert counted.reported_requests == 0
    assert attribution.row("b", "m") is None


def test_the_block_size_of_a_rank_without_events_is_the_one_assumed() -> None:
    attribution = Attribution()
    made = choice(option("a", 800), block_size=0)
    attribution.picked(placed(made), made)
    assert row(attribution).evidence.block_size == BLOCK


@pytest.mark.parametrize(
    ("cached", "counted", "tokens"),
    [(4 * TOKENS, 5 * TOKENS, 5 * TOKENS), (4 * TOKENS, None, 4 * TOKENS), (0, 10, 800)],
)
def test_no_more_is_predicted_or_delivered_than_prompts_have_though_they_were_estimated(
    cached: int, counted: int | None, tokens: int
) -> None:
    attribution = Attribution()
    attribution.found_cached(pick(attribution), cached, counted)
    found = row(attribution)
    assert (found.delivered_tokens, found.reported_prompt_tokens) == (cached, tokens)
    check(attribution)


def test_what_was_only_believed_of_a_prediction_is_kept_with_it() -> None:
    attribution = Attribution()
    made = choice(option("a", 480, arriving=800))
    one = placed(made)
    attribution.picked(one, made)
    attribution.found_cached(one, 640, None)
    tally = row(attribution).evidence.of(lambda _: True)
    assert (tally.tokens, tally.predicted, tally.believed) == (TOKENS, 800, 320)
    assert tally.gap == pytest.approx(160 / 800)


def test_a_request_that_went_elsewhere_is_compared_with_what_was_predicted_there() -> None:
    attribution = Attribution()
    one = pick(attribution)
    follow(one, "b")
    attribution.started(one)
    attribution.found_cached(one, 960, None)
    assert row(attribution).reported_requests == 0
    assert row(attribution, "b").predicted_tokens == 960
    assert row(attribution, "b").requests == 0


def test_a_shadow_that_nobody_followed_is_not_compared() -> None:
    attribution = Attribution()
    one = pick(attribution, shadow=True)
    attribution.found_cached(one, 0, None)
    attribution.ended(one, "finished", 101.0)
    assert row(attribution).reported_requests == 0


def test_a_text_that_was_not_tokenised_in_time_is_no_evidence_of_a_fault() -> None:
    attribution = Attribution()
    one = pick(attribution)
    one.is_whole = False
    attribution.found_cached(one, 0, None)
    assert row(attribution).delivered_tokens == 0
    assert row(attribution).evidence.of(lambda _: True).reports == 0


def test_what_went_where_nothing_was_predicted_is_not_compared() -> None:
    attribution = Attribution()
    one = pick(attribution)
    follow(one, "unheard-of")
    attribution.started(one)
    attribution.found_cached(one, 960, None)
    attribution.ended(one, "finished", 101.0)
    assert [found.pod for found in attribution.rows()] == ["a"]
    assert row(attribution).reported_requests == 0


def test_a_shadow_counts_for_the_pod_that_served_it() -> None:
    attribution = Attribution()
    followed, other, unknown = (pick(attribution, shadow=True) for _ in range(3))
    follow(followed, "a")
    follow(other, "b")
    for one in (followed, other):
        attribution.started(one)
    for one in (followed, other, unknown):
        attribution.ended(one, "finished", 101.0)
    (total,) = attribution.shadow.rows()
    assert total.requests == 2
    assert row(attribution).requests == row(attribution, "b").requests == 1


def test_a_pod_that_is_gone_is_dropped_and_late_reports_of_it_are_passed_over() -> None:
    attribution = Attribution()
    one = pick(attribution)
    pick(attribution, model="n")
    attribution.forget("a")
    attribution.found_cached(one, 640, None)
    attribution.ended(one, "finished", 101.0)
    assert not attribution.rows()


def test_the_last_used_pods_are_kept_where_there_are_too_many() -> None:
    attribution = Attribution(most=2)
    for name in ("a", "b", "a", "c"):
        made = choice(option(name))
        attribution.picked(placed(made), made)
    assert [found.pod for found in attribution.rows()] == ["a", "c"]
    check(attribution)


class AnyReports(RuleBasedStateMachine):
    """Picks, reports and pods that go, in any order: counters stay possible."""

    def __init__(self) -> None:
        super().__init__()
        self.attribution = Attribution(most=3)
        self.picks: list[Pick] = []

    @rule(
        pods=st.permutations("abcde"),
        held=st.lists(st.integers(0, 99), min_size=5, max_size=5),
        shadow=st.booleans(),
        client=st.sampled_from(["", "agent"]),
    )
    def pick(self, pods: list[str], held: list[int], shadow: bool, client: str) -> None:
        made = choice(*(option(pod, 16 * n) for pod, n in zip(pods, held, strict=True)))
        one = placed(made, shadow=shadow)
        one.client = client
        self.attribution.picked(one, made)
        self.picks.append(one)

    @precondition(lambda self: self.picks)
    @rule(data=st.data(), pod=st.sampled_from("abcdex"), cached=st.integers(0, TOKENS))
    def go(self, data: st.DataObject, pod: str, cached: int) -> None:
        one = data.draw(st.sampled_from(self.picks))
        follow(one, pod)
        self.attribution.started(one)
        self.attribution.found_cached(one, cached, TOKENS)

    @precondition(lambda self: self.picks)
    @rule(data=st.data(), end=st.sampled_from(["finished", "failed", "expired"]))
    def end(self, data: st.DataObject, end: str) -> None:
        one = data.draw(st.sampled_from(self.picks))
        self.picks.remove(one)
        self.attribution.ended(one, end, 103.0)  # type: ignore[arg-type]

    @rule(pod=st.sampled_from("abcde"))
    def gone(self, pod: str) -> None:
        self.attribution.forget(pod)
        assert all(found.pod != pod for found in self.attribution.rows())

    @invariant()
    def nothing_contradicts_itself(self) -> None:
        check(self.attribution)


TestAnyReports = AnyReports.TestCase
TestAnyReports.settings = settings(max_examples=examples(30), stateful_step_count=30, deadline=None)


def test_the_total_outlives_the_rows_of_removed_pods() -> None:
    attribution = Attribution()
    placed = pick(attribution)
    attribution.found_cached(placed, 700, TOKENS)
    attribution.forget("a")
    assert not attribution.rows()
    total = attribution.total
    [client] = attribution.clients
    assert client.saved_seconds == pytest.approx(
        PrefillModel().seconds(TOKENS, 0) - PrefillModel().seconds(TOKENS - 800, 800)
    )
    assert (total.requests, total.prompt_tokens, total.captured_tokens) == (1, TOKENS, 800)
    assert (total.predicted_tokens, total.delivered_tokens) == (800, 700)


def test_shares_are_of_the_engines_own_count_of_tokens() -> None:
    evidence = Evidence()
    evidence.found_cached(Traits("chat"), 100, 80, 290, 300)
    whole = evidence.of(lambda _: True)
    assert (whole.tokens, whole.delivered, whole.miscounted) == (300, 290, 1)
