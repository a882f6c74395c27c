"""Generated traffic."""

import json
from collections import Counter, defaultdict
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from warmpath.lab.demo.traffic import CHATS
from warmpath.lab.simulate.cell import Cell
from warmpath.lab.simulate.command import main
from warmpath.lab.simulate.run import pooled, run
from warmpath.lab.simulate.traffic import generated as traffic
from warmpath.lab.simulate.traffic.generated import KINDS, Generated
from warmpath.lab.simulate.traffic.requests import LoggedRequest
from warmpath.lab.simworker.latency import LatencyModel

BLOCK = 512


def requests(kind: str, count: int = 1500, seed: int = 1) -> list[LoggedRequest]:
    return list(Generated(kind, seed).traffic(count).requests)


def without_affinity(found: list[LoggedRequest]) -> list[Any]:
    return [(one.at, one.prompt_tokens, one.output_tokens, one.keys) for one in found]


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_names_traffic(kind: str) -> None:
    assert requests(kind) == requests(kind)
    assert requests(kind) != requests(kind, seed=2)


@pytest.mark.parametrize("kind", KINDS)
def test_fewer_requests_are_the_first_of_more(kind: str) -> None:
    assert without_affinity(requests(kind, 400)) == without_affinity(requests(kind))[:400]


@pytest.mark.parametrize("kind", KINDS)
def test_requests_come_in_order_with_a_key_a_block(kind: str) -> None:
    found = requests(kind)
    assert len(found) == 1500
    assert all(before.at <= after.at for before, after in pairwise(found))
    for one in found:
        assert len(one.keys) == -(-one.prompt_tokens // BLOCK)
        assert 0 < one.prompt_tokens <= traffic.MOST_PROMPT_TOKENS
        assert one.output_tokens > 0


@pytest.mark.parametrize("kind", KINDS)
def test_equal_keys_are_equal_prefixes(kind: str) -> None:
    before: dict[int, int | None] = {}
    for one in requests(kind):
        for parent, key in pairwise((None, *one.keys)):
            assert key is not None
            assert before.setdefault(key, parent) == parent


@pytest.mark.parametrize(
    ("kind", "prompt", "reuse"),
    [
        ("docs", (20_000, 40_000), (0.70, 0.92)),
        ("agent", (12_000, 30_000), (0.85, 0.96)),
        ("bursts", (2_500, 7_000), (0.80, 0.95)),
        ("tenants", (4_000, 7_000), (0.65, 0.90)),
        ("reading", (15_000, 25_000), (0.5, 0.7)),
    ],
)
def test_kinds_have_their_sizes_and_their_reuse(
    kind: str, prompt: tuple[int, int], reuse: tuple[float, float]
) -> None:
    for seed in (1, 2):
        found = requests(kind, seed=seed)
        hit, _ = pooled(found, 10**9, BLOCK, LatencyModel())
        assert prompt[0] <= sum(one.prompt_tokens for one in found) / len(found) <= prompt[1]
        assert reuse[0] <= hit <= reuse[1]


def test_bursts_are_identical_and_close() -> None:
    copies: dict[tuple[int, ...], list[LoggedRequest]] = defaultdict(list)
    for one in requests("bursts"):
        copies[one.keys].append(one)
    sizes = Counter(len(alike) for alike in copies.values() if len(alike) > 1)
    assert set(sizes) >= set(traffic.COPIES)
    # The last one may be cut where the traffic ends.
    assert sum(sizes[size] for size in set(traffic.COPIES)) >= sizes.total() - 1
    for alike in copies.values():
        assert len({one.prompt_tokens for one in alike}) == 1
        assert alike[-1].at - alike[0].at <= traffic.WITHIN


def test_a_turn_begins_with_the_full_blocks_of_the_one_before() -> None:
    for seed in range(20):
        turns = list(traffic.AGENT.hold(Random(seed), 5.0, (1, 2, 3)))
        assert turns[0].at == 5.0
        assert turns[0].keys[:3] == (1, 2, 3)
        for before, after in pairwise(turns):
            full = before.prompt_tokens // BLOCK
            assert after.at >= before.at + 1.0
            assert after.prompt_tokens >= before.prompt_tokens + before.output_tokens + 200
            assert after.keys[:full] == before.keys[:full]
            assert after.keys[full] not in before.keys


def test_long_cold_prompts_are_more_than_a_tenth_of_what_is_read() -> None:
    seen: set[int] = set()
    long = 0
    found = requests("reading")
    for one in found:
        fresh = sum(key not in seen for key in one.keys)
        long += fresh * BLOCK >= 24_000
        seen.update(one.keys)
    assert 0.13 <= long / len(found) <= 0.2


def test_generated_traffic_is_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--pods", "3", "--requests", "150", "--json"]
    assert main(["--traffic", "agent", "--traffic-seed", "4", *args]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["trace"], found["requests"]) == ("agent traffic, seed 4", 150)
    cell = Cell(Generated("agent", 4), "warmpath", 3, 1500, 0.5, requests=150)
    assert run(cell).ttft_curve_s == found["ttft_curve_s"]


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ([], "one of the arguments --trace --traffic is required"),
        (["--trace", str(CHATS), "--traffic", "docs"], "--traffic: not allowed with .*--trace"),
        (["--traffic", "rush"], "--traffic: invalid choice: 'rush'.*agent.*bursts.*docs.*tenants"),
        (["--traffic", "docs", "--traffic-seed", "x"], "--traffic-seed: invalid int value: 'x'"),
    ],
)
def test_one_source_of_traffic_is_asked_for(
    args: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(args)
    told = capsys.readouterr().err
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(told)


def test_too_many_requests_and_unknown_kinds_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--traffic", "docs", "--requests", "100001"]) == 2
    assert "--requests is 100001, not 0 to 100000 (with --traffic)" in capsys.readouterr().err
    with pytest.raises(ValueError, match="--traffic is 'rush'; known: docs, agent"):
        Generated("rush").traffic()
