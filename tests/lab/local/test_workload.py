"""The demo's workload keeps what matters of the trace, and its figures are what they are called."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

import pytest

from warmpath.lab.demo.setting import TRACE
from warmpath.lab.local.measure import Served, TrafficRun, figures
from warmpath.lab.local.workload import (
    RESERVED,
    VOCAB_SIZE,
    TraceRequest,
    block_tokens,
    build,
    ceilings,
    read_trace,
    spread,
)


def request(stamp: float, length: int, *ids: int) -> TraceRequest:
    return TraceRequest(stamp, length, 5, ids)


def test_equal_blocks_are_equal_tokens_within_the_vocabulary() -> None:
    assert block_tokens(7) == block_tokens(7)
    assert block_tokens(7) != block_tokens(8)
    assert min(block_tokens(7)) >= RESERVED
    assert max(block_tokens(7)) < VOCAB_SIZE


def test_lengths_order_and_prefixes_are_the_traces_own() -> None:
    requests = [request(0, 700, 1, 2), request(3, 600, 1, 3), request(9, 1024, 1, 2)]
    one, two, three = build(requests, span=100, most_output=3)
    assert [len(arrival.tokens) for arrival in (one, two, three)] == [700, 600, 1024]
    assert one.tokens[:512] == two.tokens[:512]
    assert one.tokens[512:600] != two.tokens[512:600]
    assert three.tokens[:700] == one.tokens
    assert (one.at, three.at) == (0, 100)
    assert one.at < two.at < three.at
    assert one.max_tokens == 3


def test_requests_of_one_stamp_are_spread_up_to_the_next() -> None:
    assert spread([request(0, 1, 1), request(0, 1, 2), request(3, 1, 3)]) == [0, 1.5, 3]


def test_a_quiet_time_is_not_filled() -> None:
    assert spread([request(0, 1, 1), request(0, 1, 2), request(60, 1, 3)]) == [0, 1.5, 60]


def test_the_ceiling_is_what_was_seen_before_as_a_prefix() -> None:
    requests = [request(0, 1024, 1, 2), request(1, 1024, 1, 2), request(2, 1024, 9, 2)]
    assert ceilings(requests)[-1] == 1023 / 3072


def sample_conversations(requests: Iterable[TraceRequest], one_in: int) -> list[TraceRequest]:
    """Keep whole conversations, one in `one_in`, chosen by a hash of their name.

    A contiguous stretch of minutes would cut conversations that last an hour, and with them most of
    the reuse.
    """

    def chosen(request: TraceRequest) -> bool:
        # The prompt's second block names its conversation; all prompts share the first.
        name = f"0:{request.hash_ids[min(1, len(request.hash_ids) - 1)]}".encode()
        return int.from_bytes(hashlib.blake2b(name, digest_size=4).digest(), "big") % one_in == 0

    return [request for request in requests if chosen(request)]


def test_the_slice_is_what_its_note_says() -> None:
    ours = read_trace(TRACE)
    assert ours == sample_conversations(ours, 30)
    assert len(ours) == 388
    assert round(ceilings(ours)[-1], 3) == 0.373


def test_a_bad_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 1}\n', encoding="utf-8")
    with pytest.raises(ValueError, match="line 1"):
        read_trace(path)


def served(pod: int, prompt: int, cached: int, first: float) -> Served:
    return Served(0.0, pod, prompt, cached, first, first + 1)


def test_hit_ratio_savings_and_imbalance_are_in_tokens() -> None:
    answers = [served(0, 100, 50, 1.0), served(0, 100, 0, 2.0), served(1, 50, 0, 3.0)]
    run = TrafficRun(answers, failed=1, delays=[0.5], choices=[0.002])
    result = figures(run, pods=2)
    assert result.hit_ratio == 50 / 250
    assert result.saved_tokens == 50
    assert result.imbalance == 150 / 100
    assert result.failed == 1
    assert result.choice_p50_ms == 2.0
    assert result.delay_p99 == 0.5


def test_nothing_served_is_no_error() -> None:
    result = figures(TrafficRun(), pods=2)
    assert result.hit_ratio == 0
    assert result.imbalance == 1
