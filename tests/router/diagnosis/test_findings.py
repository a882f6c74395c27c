"""What looks wrong of a pod, from simulated streams of reports: each fault is found by its traces.

One file, since all tests send reports through one simulated stream.
"""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.router.consistent import check
from warmpath.indexer.shared.records.registry import NOBODY
from warmpath.indexer.trust import BEHIND, DRIFTED, Level, Trust
from warmpath.router.diagnosis.attribution import Evidence, Row
from warmpath.router.diagnosis.findings import findings
from warmpath.router.diagnosis.mispredictions import (
    ENOUGH,
    GAP,
    OFF_SHARE,
    Finding,
    PodFacts,
    RankFacts,
)
from warmpath.router.pick.weigh import Traits

NOW = 1000.0
EXACT = Trust(Level.EXACT, "followed from the first batch", 0.0)
IDS, TEXT, CHAT = Traits("ids"), Traits("text"), Traits("chat")
SALTED = Traits("text", has_salt=True)
ADAPTED = Traits("text", has_adapter=True)
PICTURED = Traits("chat", has_items=True)


def rank(
    number: int = 0,
    trust: Trust = EXACT,
    *,
    block_size: int = 16,
    stored: int = 1000,
    removed: int = 10,
    has_load: bool = True,
) -> RankFacts:
    blocks = stored - removed
    seconds = NOW - trust.since
    return RankFacts(number, trust, seconds, seconds, block_size, blocks, stored, removed, has_load)


def found(*ranks: RankFacts, **more: Any) -> Sequence[Finding]:
    """Return what is found of a pod that was asked nothing."""
    return findings(PodFacts(True, True, ranks, Row("pod-a", "m"), **more))


def inexact(level: Level, reason: str, seconds: float) -> RankFacts:
    """Return a rank that has had a level for some seconds."""
    return rank(trust=Trust(level, reason, NOW - seconds))


BLIND = rank(trust=Trust(Level.COLD, "it has no events", 0.0), block_size=0, stored=0, removed=0)


class Stream:
    """Requests to one pod: what of them is predicted, what its engine finds and how it counts."""

    def __init__(self, seed: int = 0) -> None:
        self.row = Row("pod-a", "m")
        self.evidence.block_size = 16
        self._rng = Random(seed)

    @property
    def evidence(self) -> Evidence:
        return self.row.evidence

    def run(
        self,
        traits: Traits,
        number: int = 100,
        *,
        finds: float = 1.0,
        predicts: float = 1.0,
        block: int = 16,
        extra: int = 0,
        missing: float = 0.0,
        believed: float = 0.0,
    ) -> "Stream":
        """Take reports of requests with some prefix cached.

        The engine finds `finds` of it, `predicts` of it was predicted, and its count of the
        prompt's tokens is `extra` more than ours. `missing` of the requests find nothing cached. No event
        has told of `believed` of the predicted tokens.
        """
        for _ in range(number):
            tokens = self._rng.randrange(2000, 8000)
            cached = 0 if self._rng.random() < missing else tokens * self._rng.uniform(0.4, 0.9)
            found = int(cached * finds) // block * block
            predicted = int(cached * predicts) // 16 * 16
            self.row.requests += 1
            only = int(predicted * believed)
            self.evidence.found_cached(
                traits, tokens, predicted, found, tokens + extra, believed=only
            )
            self.evidence.over("finished")
        check(self.evidence)
        return self

    def kinds(self, *ranks: RankFacts, has_events: bool = True) -> list[str]:
        return [one.kind for one in self.found(*ranks, has_events=has_events)]

    def text(self, *ranks: RankFacts, has_events: bool = True) -> str:
        (one,) = self.found(*ranks, has_events=has_events)
        return one.text

    def found(self, *ranks: RankFacts, has_events: bool = True) -> Sequence[Finding]:
        facts = PodFacts(has_events, True, ranks or (rank(),), self.row)
        return findings(facts)


ALL = (IDS, TEXT, CHAT, SALTED, ADAPTED, PICTURED)


@given(st.integers(), st.floats(0.9, 1.0), st.floats(0, 0.08), st.integers(0, 500))
def test_a_healthy_pod_gives_none(seed: int, finds: float, evicted: float, number: int) -> None:
    stream = Stream(seed)
    rng = Random(seed)
    for _ in range(number):
        finds_now = 0.0 if rng.random() < evicted else finds
        stream.run(rng.choice(ALL), 1, finds=finds_now, predicts=finds, missing=0.3)
    whole = stream.evidence.of(lambda _: True)
    if (
        abs(whole.gap) < GAP
        and whole.off_share < 0.15
        and all(tally.off_share < 0.3 for tally in stream.evidence.tallies.values())
    ):
        assert stream.kinds() == []


def test_a_pod_that_was_asked_nothing_gives_none() -> None:
    assert Stream().kinds() == []


def test_blocks_of_another_size_show_in_what_engines_find() -> None:
    stream = Stream().run(TEXT, block=24)
    assert stream.kinds() == ["block-size"]
    assert "multiples of 24 tokens cached, but its events have blocks of 16" in stream.text()


@pytest.mark.parametrize(
    ("traits", "reports"),
    [
        (TEXT, {"block": 32, "finds": 0.99}),  # larger steps of the same blocks
        (TEXT, {"block": 1}),  # an engine that reuses parts of blocks
        (CHAT, {"extra": 3}),  # another count of tokens alone
    ],
)
def test_what_a_sound_engine_may_do_is_no_finding(traits: Traits, reports: dict[str, Any]) -> None:
    assert Stream().run(traits, **reports).kinds() == []


def test_one_shared_prefix_says_nothing_of_the_size_of_blocks() -> None:
    stream = Stream()
    for _ in range(100):
        stream.evidence.found_cached(TEXT, 2000, 1000, 1000, None)
    assert stream.kinds() == []


def test_events_that_told_no_block_size_are_found() -> None:
    stream = Stream().run(TEXT, block=32, predicts=0.0)
    assert "no event has had a block size yet" in stream.text(
        rank(block_size=0, stored=0, removed=0)
    )


@pytest.mark.parametrize(
    ("right", "wrong", "kind", "text"),
    [
        ([(TEXT, 100, {"missing": 0.1}), (CHAT, 50, {})], [(SALTED, 40, {"predicts": 0.0})], "cache-salt", "only requests with a cache salt are predicted wrong, 100%"),
        ([(TEXT, 100, {}), (CHAT, 100, {})], [(ADAPTED, 40, {"predicts": 0.0})], "adapter", ""),
        ([(CHAT, 100, {})], [(PICTURED, 40, {"predicts": 0.1})], "multimodal", ""),
        ([(TEXT, 100, {})], [(CHAT, 40, {"predicts": 0.0, "extra": 7})], "template", "its engine's and the router's token counts differ in 100%"),
        ([(IDS, 20, {})], [(TEXT, 100, {"predicts": 0.2}), (CHAT, 100, {"predicts": 0.2})], "tokenizer", ""),
        # Where there is nothing to compare with, the engine's count tells.
        ([], [(CHAT, 100, {"predicts": 0.1, "extra": 3})], "template", ""),
        ([], [(TEXT, 100, {"predicts": 0.1, "extra": 3})], "tokenizer", ""),
        ([], [(TEXT, 100, {"predicts": 0.0})], "hash-seed", "none of the 990 blocks"),
        # An engine that never finds anything does not tell, or does not cache.
        ([], [(TEXT, 100, {"finds": 0.0})], "cached-tokens", "--enable-prompt-tokens-details"),
        ([], [(TEXT, 100, {"predicts": 0.5})], "predictions", ""),
    ],
)  # fmt: skip
def test_the_kind_of_requests_that_is_predicted_wrong_names_the_cause(
    right: list[Any], wrong: list[Any], kind: str, text: str
) -> None:
    stream = Stream()
    for traits, number, reports in right + wrong:
        stream.run(traits, number, **reports)
    assert stream.kinds() == [kind]
    assert text in stream.text()


def test_too_few_reports_say_nothing() -> None:
    assert Stream().run(TEXT).run(SALTED, 15, predicts=0.0).kinds() == ["gap"]
    assert "cache-salt" not in Stream().run(TEXT).run(SALTED, ENOUGH - 1, predicts=0.0).kinds()
    assert Stream().run(CHAT, ENOUGH - 1, predicts=0.0, extra=3).kinds() == []


def test_what_was_mended_is_forgotten_and_what_broke_is_seen_against_a_good_past() -> None:
    stream = Stream().run(TEXT).run(SALTED, 200, predicts=0.0)
    assert stream.kinds() == ["cache-salt"]
    assert stream.run(SALTED, 100).kinds() == []
    assert stream.run(SALTED, 30, predicts=0.0).kinds() == ["cache-salt"]


def test_a_publisher_of_another_keyspace_is_the_hash_seed_before_any_report() -> None:
    reason = "FAILED_PRECONDITION: keyspace: router and publisher differ in the hash seed"
    cold = rank(trust=Trust(Level.COLD, reason, 0.0))
    stream = Stream().run(TEXT, predicts=0.0)
    assert stream.kinds(cold) == Stream().kinds(cold) == ["hash-seed"]
    assert reason in stream.text(cold)


def test_blocks_that_are_gone_when_they_are_needed_are_evictions() -> None:
    stream = Stream().run(TEXT, finds=0.3).run(CHAT, finds=0.3)
    assert stream.kinds(rank(removed=800)) == ["evictions"]
    assert "800 of 1,000 stored blocks" in stream.text(rank(removed=800))
    watched = rank(stored=0, removed=0)
    assert stream.kinds(watched) == ["evictions"]


def test_a_pod_without_events_is_told_that_what_was_sent_there_is_not_there() -> None:
    assert Stream().run(TEXT, finds=0.3, block=64).kinds(BLIND, has_events=False) == ["no-events"]
    assert Stream().run(TEXT, block=64).kinds(BLIND, has_events=False) == []
    of_model = Stream().run(TEXT, finds=0.3, block=16)
    assert of_model.kinds(BLIND, has_events=False) == ["no-events"]
    of_model.evidence.block_size = 0
    assert "assumes blocks of 64" in of_model.text(BLIND, has_events=False)


def test_a_view_that_is_doubtful_for_long_is_told_and_explains_wrong_predictions() -> None:
    stream = Stream().run(TEXT, predicts=0.3)
    gap = inexact(Level.DEGRADED, "12 batches were missed", 300)
    assert stream.kinds(gap) == ["trust"]
    text = "rank 0 is degraded, and not exact for 300 s: 12 batches were missed"
    assert text in stream.text(gap)
    assert "trust" not in stream.kinds(inexact(Level.DEGRADED, "12 batches were missed", 5))


def test_a_worse_level_or_another_reason_does_not_begin_the_wait_anew() -> None:
    stale = inexact(Level.STALE, "the shared index: no answer", 1)
    stale = replace(stale, inexact_seconds=90)
    [told] = found(stale)
    assert "rank 0 is stale, and not exact for 90 s: " in told.text
    [told] = found(stale, shared=SHARED)
    assert "rank 0 is stale, and not exact for 90 s: " in told.text


def test_more_blocks_than_the_cache_has_are_told_at_once_and_once_they_were_given_up() -> None:
    drifted = Trust(Level.DEGRADED, f"{DRIFTED}: 102 of 95", NOW - 1)
    for one in (
        replace(rank(trust=drifted), capacity=95),
        replace(rank(), capacity=95, drifts=2),
        rank(trust=Trust(drifted.level, drifted.reason, 0.0)),
    ):
        [finding] = found(one)
        assert finding.kind == "drift"
        assert "kv_cache_report_mode" in finding.text
        assert ("cache has (95)" in finding.text) == (one.capacity == 95)
        assert ("2 times" in finding.text) == (one.drifts == 2)


def test_a_pod_that_gets_requests_and_sends_no_events_is_told() -> None:
    cold = rank(trust=Trust(Level.COLD, "nothing seen yet", 0.0), stored=0, removed=0)
    assert Stream().kinds(cold) == []
    assert "trust" in Stream().run(TEXT).kinds(cold)


def test_a_load_that_nobody_tells_is_found_where_the_pod_is_asked() -> None:
    stream = Stream().run(TEXT)
    unseen = rank(has_load=False)
    assert stream.kinds(unseen) == ["load"]
    assert stream.kinds(unseen, rank(1)) == []
    assert findings(PodFacts(True, False, (unseen,), stream.row)) == []


@pytest.mark.parametrize(
    ("factor", "typical", "words"),
    [
        (6.0, 5.0, "take 6 times as long as the cost model says"),
        (0.1, 0.1, "take 0.1 times as long as the cost model says"),
        (3.0, 1.0, "take 3.0 times as long as on the model's typical pod"),
        (2.0, 1.5, ""),
        (0.5, 0.2, ""),
    ],
)
def test_prefills_that_are_far_off_are_found(factor: float, typical: float, words: str) -> None:
    stream = Stream().run(TEXT)
    stream.evidence.factors[0] = factor
    facts = PodFacts(True, True, (rank(),), stream.row, typical)
    texts = [one.text for one in findings(facts) if one.kind == "calibration"]
    assert len(texts) == bool(words)
    assert all(words in text for text in texts)


def test_requests_that_are_never_reported_are_found() -> None:
    stream = Stream()
    for number in range(60):
        stream.evidence.over("finished" if number % 5 == 0 else "expired")
    assert stream.kinds() == ["reports"]
    for _ in range(60):
        stream.evidence.over("failed")
    assert stream.kinds() == []


def some_off(stream: Stream, share: int, *, finds: float = 1.0, predicts: float = 1.0) -> Stream:
    """Take 300 reports: every `share`th is off, and no event announced a fifth of the predicted blocks."""
    for number in range(300):
        if number % share:
            stream.run(TEXT, 1, believed=0.2)
        else:
            stream.run(TEXT, 1, finds=finds, predicts=predicts, believed=0.2)
    assert stream.evidence.of(lambda _: True).off_share < OFF_SHARE
    return stream


def test_a_gap_between_predicted_and_delivered_is_named_where_most_predictions_are_right() -> None:
    stream = some_off(Stream(), 5, finds=0.0)
    assert stream.kinds() == ["gap"]
    whole = stream.evidence.of(lambda _: True)
    predicted, delivered = whole.predicted / whole.tokens, whole.delivered / whole.tokens
    assert f"{predicted:.0%} of its last requests' tokens were predicted" in stream.text()
    assert f"{delivered:.0%} were found, {whole.gap:.0%} fewer" in stream.text()
    assert "20% of the predicted ones were not in any event" in stream.text()
    assert stream.run(TEXT, 200).kinds() == []


def test_a_gap_says_whether_beliefs_or_lost_blocks_are_the_likely_cause() -> None:
    assert "arriving" in some_off(Stream(), 5, finds=0.0).text()
    stream = Stream()
    for number in range(300):
        stream.run(TEXT, 1, finds=float(number % 5 > 0))
    assert "; 0% of the predicted ones were not in any event" in stream.text()
    assert "arriving" not in stream.text()
    assert "evicted" in stream.text()


def test_more_that_is_found_than_predicted_is_a_gap_too() -> None:
    stream = some_off(Stream(), 5, predicts=0.0)
    assert stream.kinds() == ["gap"]
    assert "more" in stream.text()


def test_a_gap_is_no_finding_where_it_is_small_or_short_or_explained() -> None:
    assert some_off(Stream(), 15, finds=0.0).kinds() == []
    short = Stream()
    for _ in range(100):
        # Four blocks: the engine computes the last one anew, the router counts all but a token.
        short.evidence.found_cached(TEXT, 64, 63, 48, 64)
    assert short.kinds() == []
    gap = inexact(Level.DEGRADED, "12 batches were missed", 300)
    assert some_off(Stream(), 5, finds=0.0).kinds(gap) == ["trust"]
    assert Stream().run(TEXT, ENOUGH - 1, finds=0.0).kinds() == []


def test_a_pod_without_events_may_have_the_gap_that_is_counted_on() -> None:
    assert some_off(Stream(), 7, finds=0.0).kinds(BLIND, has_events=False) == []
    stream = some_off(Stream(), 4, finds=0.0)
    assert stream.kinds(BLIND, has_events=False) == ["gap"]
    assert "pick.assumed-seconds" in stream.text(BLIND, has_events=False)


def test_reports_of_several_kinds_are_counted_together() -> None:
    evidence = Stream().run(TEXT, 20, predicts=0.5).run(CHAT, 30).evidence
    one, other = evidence.tallies[TEXT], evidence.tallies[CHAT]
    both = evidence.of(lambda _: True)
    assert both.reports == 50
    assert both.weight == pytest.approx(one.weight + other.weight)
    assert both.predicted == pytest.approx(one.predicted + other.predicted)
    assert one.off_share == 1.0 > both.off_share > other.off_share == 0.0


SHARED = "redis://10.0.0.9:6379 under prefix 'x'"
OOM = "OOM command not allowed when used memory > 'maxmemory'."


@pytest.mark.parametrize(
    ("level", "reason", "told"),
    [
        *((level, "the shared index: 10.0.0.9:6379: Connection refused", [SHARED, "Connection refused", "Do this: look whether Redis runs"]) for level in (Level.STALE, Level.DEGRADED, Level.COLD)),
        (Level.DEGRADED, OOM, [SHARED, "is full and refuses its publisher's writes: rank 0 is degraded", "'maxmemory'. Do this: raise maxmemory in Redis"]),
        (Level.COLD, NOBODY, [f"no publisher has written it to the shared index at {SHARED}", "look at its log: Redis may refuse its writes"]),
    ],
)  # fmt: skip
def test_a_shared_index_that_is_away_full_or_without_the_pod_is_named(
    level: Level, reason: str, told: list[str]
) -> None:
    (finding,) = found(inexact(level, reason, 20), shared=SHARED)
    assert finding.kind == "shared-index"
    assert all(part in finding.text for part in told)
    assert found(inexact(level, reason, 5), shared=SHARED) == []
    assert found(rank(), shared=SHARED) == []


@pytest.mark.parametrize(
    "problem",
    [
        "NOAUTH Authentication required. (this Redis wants a password: give it in password-file)",
        "WRONGPASS invalid username-password pair or user is disabled.",
        "no connection within 5 s (does the server use TLS?)",
        "unknown command 'SENTINEL' (this Redis is no sentinel: its URL begins with redis://)",
    ],
)
def test_where_a_reason_says_what_helps_the_finding_adds_nothing(problem: str) -> None:
    reason = f"the shared index: 10.0.0.9:6379: {problem}; 64 of 64 buckets are left alone"
    (finding,) = found(inexact(Level.DEGRADED, reason, 20), shared=SHARED)
    assert finding.text.endswith(reason)


def test_events_that_are_followed_late_for_longer_than_a_burst_are_a_finding_of_their_own() -> None:
    behind = replace(inexact(Level.DEGRADED, f"{BEHIND}: more than 2 s", 70), lag_batches=1234)
    (finding,) = found(behind)
    assert finding.kind == "lag"
    assert "rank 0 have been applied late for 70 s (1234 batches wait here)" in finding.text
    assert found(replace(behind, trust_seconds=3.0)) == []


def test_a_figure_that_cannot_be_is_named() -> None:
    (told,) = found(replace(rank(), bad_figures=("kv_usage",)))
    assert told.kind == "load"
    assert "kv_usage" in told.text


def test_a_stuck_rank_is_named_whatever_is_known_of_its_load() -> None:
    stuck = replace(rank(1, has_load=False), stuck_seconds=34.2)
    (told,) = found(rank(), stuck)
    assert told.kind == "stuck"
    assert "rank 1 has answered nothing for 34 s" in told.text
    assert Stream().kinds(stuck) == ["stuck"], "its gauges may stand still"
