"""An index that its user feeds: with values or payloads, in order, and what is said of what is missing."""

import json
from functools import partial
from pathlib import Path

import msgspec
import pytest

from tests.indexer.consistent import check
from tests.indexer.sides import CLEARED, removed, stored
from tests.warmpath.conftest import Clock, run_at_once
from warmpath import Cleared, Index, Level, Moved, Removed, Scorer, Stored, Tier
from warmpath.indexer.follow.stream_source import RankIngest

IDS = list(range(32))
STORED = Stored.of([1, 2], IDS, block_size=16)


@pytest.fixture
def index(clock: Clock) -> Index:
    return Index("m", max_bytes=1 << 24, clock=clock)


def payload(*events: dict[str, object]) -> bytes:
    return msgspec.msgpack.encode([1.0, list(events), 0])


def matched(index: Index, pod: str = "p") -> int:
    [score] = Scorer(index).score([*IDS, 1], pods=[pod])
    check(index.ingest)
    return score.matched_tokens


def test_blocks_come_move_and_go(index: Index) -> None:
    index.feed("p", [STORED])
    assert (matched(index), index.blocks("p")) == (32, {Tier.GPU: 2})
    index.feed("p", [Moved.of(1, source="gpu", target="cpu"), Removed.of([2])])
    assert (matched(index), index.blocks("p")) == (16, {Tier.CPU: 1})
    index.feed("p", [Stored.of([7], IDS[16:], block_size=16, parent=1)])
    assert matched(index) == 32
    index.feed("p", [Cleared()])
    assert (matched(index), index.blocks("p")) == (0, {})
    assert index.trust("p").level is Level.EXACT


def test_values_and_payloads_of_one_engine_can_follow_each_other(index: Index) -> None:
    index.feed("p", payload(stored([1], IDS[:16], None, 16)))
    index.feed("p", [Stored.of([2], IDS[16:], block_size=16, parent=1)])
    assert matched(index) == 32
    index.feed("p", payload(removed([2])))
    assert matched(index) == 16
    index.feed("p", payload(CLEARED))
    assert matched(index) == 0


def test_a_pod_is_added_by_its_first_events_and_may_come_back(index: Index) -> None:
    index.feed("p", [STORED])
    index.feed("q", [])
    assert index.pods == ["p", "q"]
    index.remove("p")
    assert index.pods == ["q"]
    assert [one.pod for one in Scorer(index).score([*IDS, 1])] == ["q"]
    index.feed("p", [])
    assert (matched(index), index.trust("p").level) == (0, Level.EXACT)


def test_sequence_numbers_show_duplicates_gaps_and_new_lives(index: Index) -> None:
    first = payload(stored([1, 2], IDS, None, 16))
    index.feed("p", first, sequence=0)
    index.feed("p", first, sequence=0)
    assert (matched(index), index.trust("p").level) == (32, Level.EXACT)
    index.feed("p", payload(removed([2])), sequence=2)
    assert index.trust("p").level is Level.DEGRADED
    assert index.trust("p").reason == "batches 1 to 1 are lost"
    index.feed("p", payload(stored([1], IDS[:16], None, 16)), sequence=0)
    assert (matched(index), index.trust("p").level) == (16, Level.EXACT)


def test_what_was_missed_degrades_until_a_clear(index: Index) -> None:
    index.feed("p", [STORED])
    index.missed("p", "the queue was full")
    trust = index.trust("p")
    assert (trust.level, trust.reason) == (Level.DEGRADED, "the queue was full")
    assert matched(index) == 32
    index.feed("p", [Cleared()])
    assert index.trust("p").level is Level.EXACT


def test_a_pod_whose_events_end_is_stale_after_a_second(index: Index, clock: Clock) -> None:
    index.feed("p", [STORED])
    index.disconnected("p")
    assert index.trust("p").level is Level.EXACT
    clock.now += 2.0
    assert index.trust("p").level is Level.STALE
    [score] = Scorer(index).score([*IDS, 1])
    assert (score.matched_tokens, score.ready) == (0, False)
    index.feed("p", [Stored.of([3], [9] * 16, block_size=16)])
    assert index.trust("p").level is Level.DEGRADED
    assert "reconnected without a replay endpoint" in index.trust("p").reason


def test_a_store_without_its_parent_degrades_and_unknown_blocks_change_nothing(
    index: Index,
) -> None:
    index.feed("a", [STORED])
    index.feed("a", [Removed.of([77]), Moved.of(78, source="gpu", target="cpu")])
    assert index.trust("a").level is Level.EXACT
    index.feed("a", [Stored.of([3], IDS[:16], block_size=16, parent=99)])
    assert index.trust("a").level is Level.DEGRADED
    assert index.blocks("a") == {Tier.GPU: 2}


def test_a_payload_that_cannot_be_read_degrades_and_raises_nothing(index: Index) -> None:
    index.feed("p", payload(stored([1, 2], IDS, None, 16)))
    index.feed("p", b"\xc1")
    assert index.trust("p").level is Level.DEGRADED
    assert "is malformed" in index.trust("p").reason


def test_tensorrt_llms_answers_say_whose_events_they_are(index: Index) -> None:
    index.add("t", engine="trtllm", ranks=2, block_size=16)
    block = {"block_hash": 1, "tokens": [{"token_id": id_} for id_ in IDS[:16]], "cache_level": 0}
    events = [
        {"event_id": 0, "attention_dp_rank": 1, "data": {"type": "created", "num_blocks_per_cache_level": [9]}},
        {
            "event_id": 1, "attention_dp_rank": 1,
            "data": {"type": "stored", "parent_hash": None, "blocks": [block]},
        },
    ]  # fmt: skip
    index.feed("t", json.dumps(events).encode())
    assert [one.matched_tokens for one in Scorer(index).score([*IDS, 1])] == [0, 16]
    assert index.trust("t", rank=1).level is Level.EXACT
    index.feed("t", b"{")
    assert index.trust("t", rank=1).level is Level.DEGRADED
    with pytest.raises(ValueError, match="rank and sequence: TensorRT-LLM's payload has its own"):
        index.feed("t", b"[]", rank=1)


def test_ranks_hold_blocks_of_their_own(index: Index) -> None:
    index.add("p", ranks=2)
    index.feed("p", [STORED], rank=1)
    assert [one.matched_tokens for one in Scorer(index).score([*IDS, 1])] == [0, 32]
    with pytest.raises(ValueError, match="rank is 2; it must be 0 to 1"):
        index.feed("p", [STORED], rank=2)


def test_nothing_of_a_batch_with_an_impossible_event_is_applied(index: Index) -> None:
    with pytest.raises(ValueError, match=r"events\[1\]\.tokens are 8; 1 blocks of 16 have 16"):
        index.feed("p", [STORED, Stored((3,), None, b"\0" * 32, 16)])
    assert index.pods == []


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"pod": ""}, "pod has 0 characters; it must have 1 to 1024"),
        ({"ranks": 0}, "ranks is 0; it must be 1 to 1024"),
        ({"blocks": -1}, "blocks is -1; it must be 0"),
        ({"block_size": 0}, "block_size is 0; it must be 1 to 1048576"),
        ({"engine": "other"}, "engine is 'other'; it must be one of vllm, sglang, trtllm"),
        ({"role": "other"}, "role is 'other'; it must be one of both, prefill, decode"),
        ({"pod": "there"}, "pod 'there' is there already"),
    ],
)
def test_a_pod_that_cannot_be_is_refused(
    index: Index, fields: dict[str, object], problem: str
) -> None:
    index.add("there")
    with pytest.raises(ValueError, match=problem):
        index.add(**{"pod": "p"} | fields)  # type: ignore[arg-type]
    assert index.pods == ["there"]


def test_what_does_not_exist_is_named(index: Index) -> None:
    for call in (index.remove, index.disconnected, index.trust, index.blocks):
        with pytest.raises(ValueError, match="pod is 'p'; the index has no such pod"):
            call("p")
    index.add("blind", has_events=False)
    with pytest.raises(ValueError, match="pod 'blind' was added without events"):
        index.feed("blind", [])
    with pytest.raises(ValueError, match="max_bytes is 1; it must be 16777216 or more"):
        Index("m", max_bytes=1)


def test_a_payload_needs_the_name_of_its_engine(index: Index) -> None:
    index.feed("p", [STORED])
    index.add("q")
    for pod in index.pods:
        with pytest.raises(ValueError, match=f"pod '{pod}' was added without an engine; a payload"):
            index.feed(pod, payload())


def test_batches_with_and_without_numbers_are_not_mixed(index: Index) -> None:
    index.feed("p", payload(), sequence=0)
    with pytest.raises(ValueError, match="sequence: earlier batches of 'p' came with numbers"):
        index.feed("p", [STORED])
    index.feed("q", payload())
    with pytest.raises(ValueError, match="sequence: earlier batches of 'q' came without numbers"):
        index.feed("q", payload(), sequence=7)


def test_an_index_has_at_most_so_many_pods(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warmpath.library.index.MOST_PODS", 1)
    index.feed("p", [])
    with pytest.raises(ValueError, match="pod 'q' is one too many; an index has at most 1"):
        index.feed("q", [])


def test_a_bug_of_ours_leaves_no_half_applied_batch(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.feed("p", [STORED])

    def fails(*_: object) -> None:
        raise KeyError

    monkeypatch.setattr(RankIngest, "decoded", fails)
    with pytest.raises(KeyError):
        index.feed("p", [Removed.of([1])])
    monkeypatch.undo()
    assert (matched(index), index.trust("p").level) == (0, Level.DEGRADED)
    assert index.trust("p").reason == "a bug of ours: KeyError"


def test_dropped_blocks_are_swept_while_others_are_fed(index: Index, clock: Clock) -> None:
    for life in range(300):
        clock.now += 1.0
        index.feed("p", [Stored.of([1, 2], [life] * 32, block_size=16), Cleared()])
    assert index.ingest.index.stats().keys < 10


def test_any_number_of_threads_may_feed_and_score(index: Index) -> None:
    scorer = Scorer(index)

    def feed(pod: str) -> None:
        for _ in range(50):
            index.feed(pod, [STORED])
            index.feed(pod, [Removed.of([1, 2])])
        index.feed(pod, [STORED])

    def score() -> None:
        for _ in range(100):
            assert all(one.matched_tokens in (0, 16, 32) for one in scorer.score([*IDS, 1]))

    run_at_once(*(partial(feed, f"pod-{n}") for n in range(4)), score, score)
    assert [one.matched_tokens for one in scorer.score([*IDS, 1])] == [32] * 4
    check(index.ingest)


def test_texts_need_a_tokenizer(index: Index, model_folder: Path) -> None:
    index.feed("p", [Stored.of([1], range(16), block_size=16)])
    with pytest.raises(ValueError, match="text: needs a tokenizer; give one, or token ids"):
        Scorer(index).score("a text")
    by_folder = Scorer(index, tokenizer=model_folder).reader.read("a text of some words")
    assert by_folder.form == "text"
    assert by_folder.prompt.tokens > 3
    ids = Scorer(index, tokenizer=lambda text: [len(text)] * 20).reader.read("abc").prompt.ids
    assert ids == (3).to_bytes(4, "little") * 20
    with pytest.raises(ValueError, match=r"tokenizer: .*tokenizer\.json"):
        Scorer(index, tokenizer=model_folder / "nowhere")
