"""What an engine says of itself, compared with its table: each fault with the setting to change."""

import json
from collections.abc import Mapping

import pytest

from warmpath.cli.deployment import engine
from warmpath.cli.deployment.check import Answer, Check, Placed, _ahead
from warmpath.router.config.schema import ModelSpec, PodSpec


def placed(table: str = "pods[0]", **fields: object) -> Placed:
    spec = PodSpec(id="p", model="demo", address="h:1", events="tcp://h:2", **fields)  # type: ignore[arg-type]
    return Placed(spec, table)


def of_vllm(pod: Placed, *lines: str, seen: Mapping[int, int] | None = None) -> dict[str, Check]:
    page = "".join(f"vllm:cache_config_info{{{line}}} 1.0\n" for line in lines).encode()
    checks = engine.cache(pod, Answer(200, page), Answer(404), seen or {})
    return {one.check: one for one in checks}


def of_sglang(pod: Placed, **said: object) -> dict[str, Check]:
    info = Answer(200, json.dumps(said).encode())
    return {one.check: one for one in engine.cache(pod, Answer(404), info, {0: 16})}


def test_vllms_metrics_show_what_is_off_and_which_ranks_there_are() -> None:
    line = 'block_size="16",enable_prefix_caching="False",engine="{}",num_gpu_blocks="100"'
    pod = placed("pod-sets[1]", ranks=1, first_rank=0)
    checks = of_vllm(pod, *map(line.format, (4, 5)), seen={0: 24})
    assert checks["prefix cache"].change == "give it --enable-prefix-caching"
    assert checks["block size"].text == "the engine says 16 tokens, its events say 24"
    assert checks["block size"].change == (
        "pod-sets[1].port and pod-sets[1].events-port are of two engines"
    )
    assert checks["ranks"].change == "pod-sets[1].ranks = 2, pod-sets[1].first-rank = 4"
    assert of_vllm(pod, line.format(0), seen={0: 32})["block size"].verdict == "ok"
    assert [one.verdict for one in of_vllm(pod).values()] == ["not known"]


def test_sglangs_server_info_shows_whether_events_are_on() -> None:
    well = {"page_size": 16, "disable_radix_cache": False, "kv_events_config": "{}", "dp_size": 1}
    pod = placed(engine="sglang")
    checks = of_sglang(pod, **well)
    assert {one.verdict for one in checks.values()} == {"ok"}
    assert set(checks) == {"prefix cache", "block size", "events on", "ranks"}
    off = of_sglang(pod, **well | {"kv_events_config": None, "disable_radix_cache": True})
    assert off["prefix cache"].verdict == off["events on"].verdict == "WRONG"
    assert "--kv-events-config" in off["events on"].change


@pytest.mark.parametrize("status", [401, 403])
def test_an_engine_that_wants_a_key_is_named_with_the_setting(status: int) -> None:
    found = engine.served(placed("pod-sets[1]"), Answer(status), ModelSpec("demo"))
    assert found.verdict == "WRONG"
    assert found.change.startswith("pod-sets[1].key-file: ")


def test_tensorrt_says_little() -> None:
    [only] = engine.cache(placed(engine="trtllm"), Answer(200), Answer(200), {})
    assert (only.verdict, only.check) == ("not known", "block size")
    assert "pods[0].block-size (32)" in only.text


@pytest.mark.parametrize(
    ("now", "verdict"), [(0.0, "ok"), (2.5, "ok"), (-1.9, "ok"), (4.0, "WRONG"), (-4.0, "WRONG")]
)
def test_clocks_that_are_apart_are_named(now: float, verdict: str) -> None:
    ahead = _ahead("Thu, 01 Jan 1970 00:16:40 GMT", 1000.0 + now, 1000.1 + now)
    check = engine.clock(placed(), Answer(200, ahead=ahead))
    assert check.verdict == verdict
    if verdict == "WRONG":
        assert ("behind" if now > 0 else "ahead of") in check.text


def test_an_engine_that_refuses_requests_is_not_well() -> None:
    assert engine.reachable(placed(), Answer(503)).verdict == "WRONG"
    assert "another server's" in engine.reachable(placed(), Answer(404)).change
    assert engine.clock(placed(), Answer(503)).verdict == "not known"
    assert engine.kind(placed(), Answer(404)).verdict == "not known"
