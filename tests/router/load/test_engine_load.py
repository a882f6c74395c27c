"""What engines say of their load is read in their own words, and nonsense is no load."""

import asyncio
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lab.simworker.local_worker import LocalWorker
from tests.waiting import until
from warmpath.indexer.engines.table import ENGINES
from warmpath.router.load.engine_metrics import MOST_LINE_BYTES, MOST_LINES, Observed, lines, parse

VLLM = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a\\"}b"} 3.0
vllm:num_requests_running{engine="1",model_name="a\\"}b"} 4.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="a\\"}b"} 1.0
vllm:num_requests_waiting{engine="1",model_name="a\\"}b"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 99.0
vllm:kv_cache_usage_perc{engine="0",model_name="a\\"}b"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="a\\"}b"} 0.25
"""
OLD_VLLM = b"""vllm:num_requests_running{model_name="m"} 3.0
vllm:num_requests_waiting{model_name="m"} 1.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.5
"""
SGLANG = b"""sglang:num_running_reqs{dp_rank="1",model_name="m",priority="",tp_rank="0"} 3.0
sglang:num_running_reqs{dp_rank="1",model_name="m",priority="9",tp_rank="0"} 8.0
sglang:num_running_reqs{dp_rank="1",model_name="m",priority="",tp_rank="1"} 3.0
sglang:num_queue_reqs{dp_rank="1",model_name="m",priority="",tp_rank="0"} 1.0
sglang:token_usage{dp_rank="1",model_name="m",tp_rank="0"} 0.5
"""
TRTLLM = b"""trtllm_num_requests_running{engine_type="trtllm",model_name="m"} 3.0
trtllm_num_requests_waiting{engine_type="trtllm",model_name="m"} 1.0
trtllm_kv_cache_utilization{engine_type="trtllm",model_name="m"} 0.5
"""
FAR = VLLM.replace(b'engine="1"', b'engine="5"').replace(b'engine="0"', b'engine="4"')
SEEN, SECOND = Observed(3, 1, 0.5, 9.0), Observed(4, 0, 0.25, 9.0)
BOTH = Observed(7, 1, 0.375, 9.0)


def said(engine: str, page: bytes, ranks: int = 1, first: int = 0) -> dict[int, Observed]:
    return parse(engine, page, ranks=ranks, first=first, at=9.0)


def iteration(rank: int | None = None, **more: Any) -> dict[str, Any]:
    cache = {"usedNumBlocks": 50, "maxNumBlocks": 100}
    told = {"numActiveRequests": 3, "numQueuedRequests": 1, "kvCacheStats": cache} | more
    return told if rank is None else told | {"attentionDpRank": rank}


PAGES = {
    "each of vLLM's ranks": ("vllm", VLLM, 2, 0, {0: SEEN, 1: SECOND}),
    "all engines of its page are the one rank's": ("vllm", VLLM, 1, 0, {0: BOTH}),
    "of another page, too": ("vllm", FAR, 1, 0, {0: BOTH}),
    "the first of several engines may be named": ("vllm", VLLM, 1, 1, {0: SECOND}),
    "ranks count from the engine's first": ("vllm", FAR, 2, 4, {0: SEEN, 1: SECOND}),
    "the rest is another pod's": ("vllm", VLLM, 2, 1, {0: SECOND}),
    "older names": ("vllm", OLD_VLLM, 1, 0, {0: SEEN}),
    "a longer name is another figure": (
        "vllm", OLD_VLLM + b'vllm:num_requests_waiting_by_reason{reason="x"} 9\n', 1, 0, {0: SEEN}
    ),
    "several ranks that vLLM does not tell apart": ("vllm", OLD_VLLM, 2, 0, {}),
    "several ranks that TensorRT-LLM does not tell apart": ("trtllm", TRTLLM, 2, 0, {}),
    "SGLang's sum over priorities counts once": ("sglang", SGLANG, 2, 0, {1: SEEN}),
    "a server that names its rank": ("sglang", SGLANG, 1, 0, {0: SEEN}),
    "a server that does not name the pod's rank": ("sglang", SGLANG, 1, 3, {0: SEEN}),
    "TensorRT-LLM in Prometheus' format": ("trtllm", TRTLLM, 1, 0, {0: SEEN}),
    "the last iteration counts": (
        "trtllm", json.dumps([iteration(numActiveRequests=9), iteration()]).encode(), 1, 0, {0: SEEN}
    ),
    "the last iteration of each rank": (
        "trtllm",
        json.dumps([iteration(0), iteration(1, numActiveRequests=9), iteration(1)]).encode(),
        2, 0, {0: SEEN, 1: SEEN},
    ),
    "no iteration": ("trtllm", b"[]", 1, 0, {}),
    "usage need not be said": (
        "vllm", b"\n".join(OLD_VLLM.splitlines()[:2]), 1, 0, {0: Observed(3, 1, 0.0, 9.0)}
    ),
    "nonsense is not outvoted by a second line": (
        "vllm", OLD_VLLM + b'vllm:num_requests_running{model_name="m"} NaN\n', 1, 0,
        {0: Observed(0, 1, 0.5, 9.0, ("running",))},
    ),
    "no number of requests is no observation": (
        "vllm", OLD_VLLM.replace(b"3.0", b"NaN").replace(b" 1.0", b" -1"), 1, 0, {}
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("engine", "page", "ranks", "first", "loads"), PAGES.values(), ids=list(PAGES)
)
def test_each_engines_own_words_are_read(
    engine: str, page: bytes, ranks: int, first: int, loads: dict[int, Observed]
) -> None:
    assert said(engine, page, ranks, first) == loads


@pytest.mark.parametrize(
    "change",
    [
        {"numActiveRequests": None},
        {"numQueuedRequests": "1"},
        {"numQueuedRequests": -1},
        {"numQueuedRequests": True},
        {"kvCacheStats": {"usedNumBlocks": 50, "maxNumBlocks": 0}},
        {"kvCacheStats": {"usedNumBlocks": 500, "maxNumBlocks": 100}},
        {"attentionDpRank": 5},
    ],
)
def test_statistics_that_cannot_be_cost_themselves_only(change: dict[str, Any]) -> None:
    page = json.dumps([iteration(**{"attentionDpRank": 0} | change), iteration(1)]).encode()
    seen = said("trtllm", page, 2)
    assert seen[1] == SEEN
    assert 0 not in seen or len(seen[0].bad) == 1


@pytest.mark.parametrize(
    "value", [b"NaN", b"+Inf", b"-1", b"1e9", b"1" * 50, b"x", b"", b"1_0x", b"0x10", b"\xff"]
)
@pytest.mark.parametrize("line", range(3))
def test_nonsense_costs_its_own_figure_only(value: bytes, line: int) -> None:
    lines = [row for row in VLLM.splitlines() if row[:1] != b"#" and b"reason" not in row]
    spoiled = lines[2 * line].rpartition(b" ")[0] + b" " + value
    lines[2 * line] = spoiled
    seen = said("vllm", b"\n".join(lines), 2)
    assert seen.get(1) == Observed(4, 0, 0.25, 9.0)
    names = "running", "waiting", "kv_usage"
    good = {"running": 3, "waiting": 1, "kv_usage": 0.5} | {names[line]: 0}
    assert seen[0] == Observed(**good, at=9.0, bad=(names[line],))


@given(
    st.sampled_from(sorted(ENGINES)),
    st.binary() | st.sampled_from([VLLM, SGLANG, TRTLLM]),
    st.data(),
)
def test_no_page_is_an_error(engine: str, page: bytes, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(page)))
    noise = data.draw(st.binary(max_size=5) | st.sampled_from([b"[", b"{", b'"', b"\\", b" NaN\n"]))
    for observed in parse(engine, page[:cut] + noise + page[cut:], ranks=2, at=0.0).values():
        assert observed.running >= 0
        assert observed.waiting >= 0
        assert 0 <= observed.kv_usage <= 1


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
async def test_a_workers_own_page_is_read(engine: str) -> None:
    async with LocalWorker(f"--metrics={engine}", "--data-parallel-size=2") as worker:
        worker.worker.slow_down(50)
        asked = [asyncio.create_task(worker.generate(max_tokens=60)) for _ in range(3)]
        ranks = worker.worker.ranks
        await until(lambda: sum(rank.load().running for rank in ranks) == 3, pause=0.001)
        _, page = await worker.get("/metrics")
        seen = said(engine, page.encode(), 2)
        worker.worker.slow_down(1)
        await asyncio.gather(*asked)
        assert sorted(seen) == [0, 1]
        assert sum(one.running for one in seen.values()) == 3
        assert max(one.kv_usage for one in seen.values()) > 0
        _, page = await worker.get("/metrics")
        assert set(said(engine, page.encode(), 2).values()) == {Observed(0, 0, 0.0, 9.0)}


@pytest.mark.parametrize("beginning", ["", "a 1\n", "\n\n", "xname 1\n"])
def test_lines_are_found_by_their_beginning_wherever_they_stand(beginning: str) -> None:
    page = f'{beginning}name{{a="1"}} 2\nother 3\nnamed 4\n# name 5\nname 6'.encode()
    assert [*lines(page, b"name")] == [b'name{a="1"} 2', b"named 4", b"name 6"]
    assert [*lines(page, b"missing")] == []


def test_no_more_of_a_page_is_read_than_takes_milliseconds() -> None:
    series = b'vllm:num_requests_running{engine="%d"} 1\nvllm:num_requests_waiting{engine="%d"} 0\n'
    many = b"".join(series % (rank, rank) for rank in range(2 * MOST_LINES))
    assert len(parse("vllm", many, ranks=2 * MOST_LINES, at=0.0)) == MOST_LINES
    long = b'vllm:num_requests_running{x="' + b"y" * MOST_LINE_BYTES + b'"} 1\n'
    assert parse("vllm", long + series % (0, 0), ranks=1, at=0.0)[0].running == 1
    iterations = [{"numActiveRequests": 9, "numQueuedRequests": 9}] * 5 * MOST_LINES
    last = {"numActiveRequests": 3, "numQueuedRequests": 2}
    page = msgspec.json.encode([*iterations, last])
    assert parse("trtllm", page, ranks=1, at=7.0) == {0: Observed(3, 2, 0.0, 7.0)}
