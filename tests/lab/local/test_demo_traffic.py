"""The demo's traffic keeps what matters of the recorded one, and its figures are what they are called."""

import gzip
import hashlib
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from warmpath.lab.demo.traffic import (
    CHATS,
    RESERVED,
    SESSIONS,
    agents,
    block_tokens,
    ceiling,
    chats,
    prepare,
)
from warmpath.lab.local.cluster import VOCAB_SIZE
from warmpath.lab.local.measure import Served, Times, Took, TrafficRun, figures, sessions


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def test_equal_blocks_are_equal_tokens_within_the_vocabulary() -> None:
    assert block_tokens(7, 512) == block_tokens(7, 512) != block_tokens(8, 512)
    ids = memoryview(block_tokens(7, 512)).cast("I").tolist()
    assert len(ids) == 512
    assert RESERVED <= min(ids) <= max(ids) < VOCAB_SIZE


def test_lengths_and_prefixes_of_chats_are_the_traces_own(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    given = [(0, 700, [1, 2]), (3000, 600, [1, 3]), (9000, 1024, [1, 2])]
    path.write_text(
        "\n".join(
            json.dumps(
                {"timestamp": at, "input_length": length, "output_length": 5, "hash_ids": ids}
            )
            for at, length, ids in given
        )
    )
    part = chats(path, requests=0, span=100, most_output=3)
    one, two, three = prepare(part)
    assert [request.prompt_tokens for request in (one, two, three)] == [700, 600, 1024]
    assert json.loads(one.body)["prompt"] == memoryview(one.packed).cast("I").tolist()
    assert one.packed[:2048] == two.packed[:2048]
    assert one.packed[2048:2400] != two.packed[2048:]
    assert three.packed[:2800] == one.packed
    assert [request.at for request in part.requests] == pytest.approx([0, 100 / 3, 100])
    assert {json.loads(request.body)["max_tokens"] for request in (one, two, three)} == {3}
    assert ceiling([part]) == (512 + 1023) / 2324


def test_fewer_chats_are_whole_conversations_in_the_order_of_their_times() -> None:
    every = chats(CHATS, requests=0, span=60, most_output=5).requests
    some = chats(CHATS, requests=60, span=60, most_output=5).requests
    assert [one.at for one in some] == sorted(one.at for one in some)
    assert (some[0].at, some[-1].at, len(some)) == (0, 60, 60)
    counts = [
        {one.keys[:2]: sum(other.keys[:2] == one.keys[:2] for other in among) for one in some}
        for among in (some, every)
    ]
    # Only the last chosen conversation may be cut.
    assert (
        sum(ours != theirs for ours, theirs in zip(*(of.values() for of in counts), strict=True))
        <= 1
    )


def test_sessions_begin_within_half_of_the_span_and_keep_their_pauses_as_far_as_asked() -> None:
    part = agents(SESSIONS, count=12, span=60, most_output=100, longest_pause=5)
    starts = [one.threads[0].requests[0].at for one in part.sessions]
    assert starts == pytest.approx([2.5 * place for place in range(12)])
    recorded = lines(SESSIONS)[0]["requests"]
    ours = part.sessions[0].threads[0].requests
    assert [one.pause for one in ours[1:]] == [min(5, one["pause"]) for one in recorded[1:]]
    assert [one.prompt_tokens for one in ours] == [one["in"] for one in recorded]
    first, second = [*prepare(part)][:2]
    shared = recorded[1]["blocks"][0][1] * part.block_size * 4
    assert second.session == first.session == recorded_name(0)
    assert first.packed[:shared] == second.packed[:shared][: len(first.packed)]


def recorded_name(place: int) -> str:
    return str(lines(SESSIONS)[place]["session"])


def of_whole_conversations(requests: Iterable[dict[str, Any]], one_in: int) -> list[dict[str, Any]]:
    """Keep whole conversations, one in `one_in`, chosen by a hash of their name.

    A contiguous stretch of minutes would cut conversations that last an hour, and with them most of
    the reuse.
    """

    def chosen(request: dict[str, Any]) -> bool:
        # The prompt's second block names its conversation; all prompts share the first.
        ids = request["hash_ids"]
        name = f"0:{ids[min(1, len(ids) - 1)]}".encode()
        return int.from_bytes(hashlib.blake2b(name, digest_size=4).digest(), "big") % one_in == 0

    return [request for request in requests if chosen(request)]


def test_the_samples_are_what_their_note_says() -> None:
    ours = lines(CHATS)
    assert ours == of_whole_conversations(ours, 30)
    assert len(ours) == 388
    assert round(ceiling([chats(CHATS, requests=0, span=1, most_output=1)]), 3) == 0.373
    recorded = lines(SESSIONS)
    assert [len(one["requests"]) for one in recorded] == [14] * 20
    assert max(turn["in"] for one in recorded for turn in one["requests"]) < 55_000


def served(
    pod: int, prompt: int, cached: int, first: float, session: str = "", arrived: float = 0.0
) -> Served:
    return Served(session, arrived, pod, prompt, cached, 0.5, first, first + 1, 0.002)


def test_hit_ratio_savings_and_imbalance_are_in_tokens() -> None:
    answers = [served(0, 100, 50, 1.0), served(0, 100, 0, 2.0, "s"), served(1, 50, 0, 3.0)]
    result = figures(TrafficRun(answers, failed=1), pods=2)
    assert result.hit_ratio == 50 / 250
    assert result.saved_tokens == 50
    assert result.imbalance == 150 / 100
    assert result.failed == 1
    assert result.choice_p50_ms == 2.0
    assert result.delay == 0.5
    assert (result.agents_ttft.p50, result.chats_ttft.p50, result.chats_ttft.p90) == (2.0, 3.0, 3.0)


def test_a_session_lasts_from_its_first_request_to_the_end_of_its_last_answer() -> None:
    answers = [
        served(0, 1, 0, 2.0, "b", arrived=9.0),
        served(0, 1, 0, 1.0, "a", arrived=1.0),
        served(0, 1, 0, 1.0, "a", arrived=4.0),
        served(0, 1, 0, 1.0),
    ]
    assert sessions(answers) == [Took(5.0, 1.0), Took(3.0, 0.5)]
    assert sessions([replace(one, session="") for one in answers]) == []


def test_nothing_served_is_no_error() -> None:
    result = figures(TrafficRun(), pods=2)
    assert result.hit_ratio == 0
    assert result.imbalance == 1
    assert result.sessions == Times(0, 0, 0, 0)
