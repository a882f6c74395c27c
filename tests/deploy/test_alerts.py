"""Each alert comes when it should, and does not come of what is usual: promtool runs the rules over series."""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.manifests import DEPLOY, ROOT

FOLDER = Path(sys.prefix) / "prometheus" / "usr" / "bin"
RULES = DEPLOY / "monitoring" / "alerts.yaml"

needs_prometheus = pytest.mark.skipif(
    not (FOLDER / "promtool").is_file(), reason="`make prometheus` needs a package of Debian"
)
pytestmark = needs_prometheus

ROUTER = 'instance="r1",job="warmpath"'
FLEETS = [f'instance="{one}",job="warmpath",namespace="{one}",service="warmpath"' for one in "ab"]
"""The labels of the routers of two fleets, one each, whose engines' pods have the same names."""
HOUR = "x240"
"""The length of an hour of samples, four a minute."""


@dataclass(frozen=True)
class Case:
    """Series, as promtool writes them, of which an alert comes within an hour, and those of which it does not."""

    comes: dict[str, str]
    stays_away: dict[str, str]


def counted(name: str, more: str = "") -> str:
    return f"{name}{{{ROUTER}{more}}}"


NO_TEXT_FAILS = {
    counted(f"warmpath_{name}_total"): "0" + HOUR
    for name in (
        "tokenizer_failed", "tokenizer_timeouts", "tokenizer_refused", "renderer_refused",
        "renderer_replaced",
    )
}  # fmt: skip
CASES = {
    "WarmpathRouterAway": Case({f"up{{{ROUTER}}}": "0" + HOUR}, {f"up{{{ROUTER}}}": "1" + HOUR}),
    "WarmpathRouterNotReady": Case(
        {counted("warmpath_ready"): "0" + HOUR},
        # Not ready for two minutes of every ten, as in a start.
        {counted("warmpath_ready"): " ".join(["0x7 1x31"] * 6)},
    ),
    "WarmpathNoRouterReady": Case(
        {'warmpath_ready{instance="r1",job="warmpath"}': "0" + HOUR, 'warmpath_ready{instance="r2",job="warmpath"}': "0" + HOUR},
        {'warmpath_ready{instance="r1",job="warmpath"}': "0" + HOUR, 'warmpath_ready{instance="r2",job="warmpath"}': "1" + HOUR},
    ),
    "WarmpathOverloaded": Case(
        {
            counted("warmpath_refusals_total", ',method="Pick",reason="OVERLOADED"'): "0+2" + HOUR,
            counted("warmpath_requests_total", ',method="Pick",code="OK"'): "0+98" + HOUR,
        },
        {
            counted("warmpath_refusals_total", ',method="Pick",reason="OVERLOADED"'): "0+2" + HOUR,
            counted("warmpath_refusals_total", ',method="Pick",reason="BAD_REQUEST"'): "0+90" + HOUR,
            counted("warmpath_requests_total", ',method="Pick",code="OK"'): "0+998" + HOUR,
        },
    ),
    "WarmpathLoopLate": Case(
        {
            counted("warmpath_loop_lag_seconds_bucket", ',le="0.25"'): "0+98" + HOUR,
            counted("warmpath_loop_lag_seconds_bucket", ',le="0.5"'): "0+100" + HOUR,
            counted("warmpath_loop_lag_seconds_bucket", ',le="+Inf"'): "0+100" + HOUR,
        },
        {
            counted("warmpath_loop_lag_seconds_bucket", ',le="0.1"'): "0+100" + HOUR,
            counted("warmpath_loop_lag_seconds_bucket", ',le="0.25"'): "0+100" + HOUR,
            counted("warmpath_loop_lag_seconds_bucket", ',le="+Inf"'): "0+100" + HOUR,
        },
    ),
    "WarmpathFault": Case(
        # The first one: its series was not there before.
        {counted("warmpath_refusals_total", ',method="Pick",reason="INTERNAL_ERROR"'): "_x220 1x20"},
        # One of long ago.
        {counted("warmpath_refusals_total", ',method="Pick",reason="INTERNAL_ERROR"'): "1" + HOUR},
    ),
    "WarmpathCallersKeptOut": Case(
        {counted("warmpath_kept_out_total", ',asked="Score",why="role"'): "0+15" + HOUR},
        {counted("warmpath_kept_out_total", ',asked="Score",why="role"'): "0x120 1x120"},
    ),
    "WarmpathIndexFull": Case({counted("warmpath_index_evicted_keys_total"): "0+100" + HOUR}, {counted("warmpath_index_evicted_keys_total"): "100" + HOUR}),
    "WarmpathTextsFail": Case(
        NO_TEXT_FAILS | {counted("warmpath_tokenizer_failed_total"): "0+10" + HOUR},
        NO_TEXT_FAILS | {counted("warmpath_tokenizer_failed_total"): "7" + HOUR},
    ),
    "WarmpathBlind": Case(
        {counted("warmpath_blind_requests_total", ',reason="template"'): "0+3" + HOUR, counted("warmpath_pick_requests_total", ',pod="p",model="m"'): "0+15" + HOUR},
        {counted("warmpath_blind_requests_total", ',reason="template"'): "0+1" + HOUR, counted("warmpath_pick_requests_total", ',pod="p",model="m"'): "0+15" + HOUR},
    ),
    "WarmpathNoPod": Case(
        {counted("warmpath_refusals_total", ',method="Process",reason="NO_POD"'): "0+1" + HOUR},
        {counted("warmpath_refusals_total", ',method="Process",reason="NO_POD"'): "3" + HOUR},
    ),
    "WarmpathPodNotReady": Case(
        {counted("warmpath_pod_ready", ',pod="p",model="m"'): "0" + HOUR, counted("warmpath_pod_ready", ',pod="q",model="m"'): "1" + HOUR},
        # One router of two may send requests to it.
        {
            'warmpath_pod_ready{instance="r1",job="warmpath",pod="p",model="m"}': "0" + HOUR,
            'warmpath_pod_ready{instance="r2",job="warmpath",pod="p",model="m"}': "1" + HOUR,
        },
    ),
    "WarmpathRankStuck": Case(
        {
            'warmpath_rank_stuck_seconds{instance="r1",job="warmpath",pod="p",rank="0"}': "0+15" + HOUR,
            'warmpath_rank_stuck_seconds{instance="r2",job="warmpath",pod="p",rank="0"}': "0" + HOUR,
        },
        # It hangs for a minute of every ten, as in long stalls.
        {counted("warmpath_rank_stuck_seconds", ',pod="p",rank="0"'): " ".join(["0+15x4 0x34"] * 6)},
    ),
    "WarmpathTrustLost": Case(
        {
            counted("warmpath_rank_trust", ',pod="p",rank="0",level="exact"'): "0" + HOUR,
            counted("warmpath_rank_trust", ',pod="p",rank="0",level="degraded"'): "1" + HOUR,
            counted("warmpath_pod_ready", ',pod="p",model="m"'): "1" + HOUR,
        },
        # It is cold, as before its first event, and another pod is down.
        {
            counted("warmpath_rank_trust", ',pod="p",rank="0",level="cold"'): "1" + HOUR,
            counted("warmpath_rank_trust", ',pod="p",rank="0",level="degraded"'): "0" + HOUR,
            counted("warmpath_pod_ready", ',pod="p",model="m"'): "1" + HOUR,
            counted("warmpath_rank_trust", ',pod="q",rank="0",level="stale"'): "1" + HOUR,
            counted("warmpath_pod_ready", ',pod="q",model="m"'): "0" + HOUR,
        },
    ),
    "WarmpathRankCold": Case(
        {
            counted("warmpath_rank_trust", ',pod="p",rank="0",level="cold"'): "1" + HOUR,
            counted("warmpath_rank_running", ',pod="p",rank="0"'): " ".join(["0x3 1x1"] * 40),
        },
        # One has no requests, one has announced blocks.
        {
            counted("warmpath_rank_trust", ',pod="p",rank="0",level="cold"'): "1" + HOUR,
            counted("warmpath_rank_running", ',pod="p",rank="0"'): "0" + HOUR,
            counted("warmpath_rank_trust", ',pod="q",rank="0",level="cold"'): "0" + HOUR,
            counted("warmpath_rank_running", ',pod="q",rank="0"'): "3" + HOUR,
        },
    ),
    "WarmpathEventsLost": Case(
        {counted("warmpath_events_total", ',pod="p",rank="0",kind="overflows"'): "0x220 1x20"},
        # Gaps that replays have closed.
        {counted("warmpath_events_total", ',pod="p",rank="0",kind="gaps"'): "0x220 1x20"},
    ),
    "WarmpathPredictionsWrong": Case(
        {
            counted("warmpath_pick_predicted_tokens_total", ',pod="p",model="m"'): "0+100" + HOUR,
            counted("warmpath_pick_delivered_tokens_total", ',pod="p",model="m"'): "0+70" + HOUR,
        },
        # Right for one model; of the other one nothing was predicted.
        {
            counted("warmpath_pick_predicted_tokens_total", ',pod="p",model="m"'): "0+100" + HOUR,
            counted("warmpath_pick_delivered_tokens_total", ',pod="p",model="m"'): "0+95" + HOUR,
            counted("warmpath_pick_predicted_tokens_total", ',pod="q",model="n"'): "0" + HOUR,
            counted("warmpath_pick_delivered_tokens_total", ',pod="q",model="n"'): "0" + HOUR,
        },
    ),
    "WarmpathReportsMissing": Case(
        {counted("warmpath_bookings_expired_total"): "0+10" + HOUR, counted("warmpath_pick_requests_total", ',pod="p",model="m"'): "0+100" + HOUR},
        {counted("warmpath_bookings_expired_total"): "0+1" + HOUR, counted("warmpath_pick_requests_total", ',pod="p",model="m"'): "0+100" + HOUR},
    ),
    "WarmpathQueueFull": Case(
        {counted("warmpath_refusals_total", ',method="Pick",reason="QUEUE_FULL"'): "0+1" + HOUR},
        {counted("warmpath_refusals_total", ',method="Pick",reason="QUEUE_FULL"'): "9" + HOUR},
    ),
    "WarmpathQueueLong": Case(
        {
            counted(
                "warmpath_queue_wait_seconds_bucket", f',class="batch",outcome="sent",le="{le}"'
            ): (f"0+{part}{HOUR}")
            for le, part in (("10", 80), ("30", 100), ("+Inf", 100))
        },
        {
            counted(
                "warmpath_queue_wait_seconds_bucket", f',class="batch",outcome="sent",le="{le}"'
            ): (f"0+{part}{HOUR}")
            for le, part in (("1", 95), ("10", 99), ("30", 100), ("+Inf", 100))
        },
    ),
    "WarmpathRedisAway": Case(
        {counted("warmpath_shared_index_poll_age_seconds"): "0+15" + HOUR},
        {counted("warmpath_shared_index_poll_age_seconds"): "0.1" + HOUR, counted("warmpath_shared_bookings_connected"): "1" + HOUR},
    ),
    "WarmpathCertificateEnds": Case(
        {counted("warmpath_certificate_expiry_timestamp_seconds", ',table="watch",file="ca"'): "600000" + HOUR},
        {counted("warmpath_certificate_expiry_timestamp_seconds", ',table="watch",file="ca"'): "700000" + HOUR},
    ),
    "WarmpathPodSourceAway": Case(
        {counted("warmpath_pod_source_up", ',source="pods-file x"'): "0" + HOUR},
        # Away for two minutes of every ten.
        {counted("warmpath_pod_source_up", ',source="pods-file x"'): " ".join(["0x7 1x31"] * 6)},
    ),
    "WarmpathWriterStuck": Case(
        {'warmpath_publisher_redis_trouble{instance="p1",job="warmpath-publisher"}': "1" + HOUR},
        {
            'warmpath_publisher_redis_trouble{instance="p1",job="warmpath-publisher"}': "0" + HOUR,
            'warmpath_publisher_redis_behind_seconds{instance="p1",job="warmpath-publisher"}': (
                "1" + HOUR
            ),
        },
    ),
}  # fmt: skip


def promtool(*words: str | Path) -> str:
    """Run promtool; return what it says. Fails the test if it is not content."""
    ended = subprocess.run(
        [FOLDER / "promtool", *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def one_test(series: dict[str, str], **asked: Any) -> dict[str, Any]:
    """Return a test of promtool that asks at the end of an hour."""
    return {
        "interval": "15s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{"eval_time": "60m", **asked}],
    }


def run_tests(folder: Path, tests: list[dict[str, Any]]) -> None:
    """Have promtool run tests of the rules."""
    file = folder / "tests.yaml"
    file.write_text(
        yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "15s", "tests": tests})
    )
    promtool("test", "rules", file)


def test_promtool_takes_the_rules() -> None:
    assert "SUCCESS" in promtool("check", "rules", RULES)


def test_promtool_takes_the_page_s_configuration_and_that_of_compose(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "guides" / "operate.md").read_text(encoding="utf-8")
    [block] = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    compose = (DEPLOY / "compose" / "prometheus" / "prometheus.yml").read_text(encoding="utf-8")
    for text in (block, compose):
        config = yaml.safe_load(text)
        config["rule_files"] = [str(RULES)]
        file = tmp_path / "prometheus.yml"
        file.write_text(yaml.safe_dump(config), encoding="utf-8")
        assert "SUCCESS" in promtool("check", "config", file)


def test_every_alert_has_a_case() -> None:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    assert set(CASES) == {
        rule["alert"] for one in groups for rule in one["rules"] if "alert" in rule
    }


def test_every_sum_keeps_the_namespace_by_which_alerts_are_routed() -> None:
    kept = re.findall(r"\b(?:by|on) \(([^)]*)\)", RULES.read_text())
    assert kept
    assert not [labels for labels in kept if "namespace" not in labels.split(", ")]


@pytest.mark.deep
@pytest.mark.parametrize("alert", CASES)
def test_an_alert_comes_when_it_should_and_not_of_what_is_usual(alert: str, tmp_path: Path) -> None:
    firing = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})'
    case = CASES[alert]
    one = [{"labels": "{}", "value": 1}]
    run_tests(
        tmp_path,
        [
            one_test(case.comes, expr=firing, exp_samples=one),
            one_test(case.stays_away, expr=firing, exp_samples=[]),
        ],
    )


@pytest.mark.parametrize(
    ("alert", "series", "bad", "good"),
    [
        ("WarmpathNoRouterReady", "warmpath_ready{%s}", "0", "1"),
        ("WarmpathPodNotReady", 'warmpath_pod_ready{%s,pod="p",model="m"}', "0", "1"),
        ("WarmpathReportsMissing", "warmpath_bookings_expired_total{%s}", "0+1", "0"),
    ],
)
def test_a_fleet_that_is_well_hides_no_trouble_of_another_one(
    alert: str, series: str, bad: str, good: str, tmp_path: Path
) -> None:
    picks = 'warmpath_pick_requests_total{%s,pod="p",model="m"}'
    told = {series % FLEETS[0]: bad + HOUR, series % FLEETS[1]: good + HOUR}
    told |= {picks % FLEETS[0]: "0+10" + HOUR, picks % FLEETS[1]: "0+90" + HOUR}
    firing = f'count by (namespace) (ALERTS{{alertname="{alert}",alertstate="firing"}})'
    of_one = [{"labels": '{namespace="a"}', "value": 1}]
    run_tests(tmp_path, [one_test(told, expr=firing, exp_samples=of_one)])


def test_a_tokenizer_that_cannot_be_loaded_is_told_of(tmp_path: Path) -> None:
    # The hub takes a minute to be given up; a load at the start that failed once is usual.
    loads = counted("warmpath_tokenizer_load_failures_total")
    firing = 'count(ALERTS{alertname="WarmpathTextsFail",alertstate="firing"})'
    one = [{"labels": "{}", "value": 1}]
    run_tests(
        tmp_path,
        [
            one_test(NO_TEXT_FAILS | {loads: "0+0.25" + HOUR}, expr=firing, exp_samples=one),
            one_test(NO_TEXT_FAILS | {loads: "0x8 1x232"}, expr=firing, exp_samples=[]),
        ],
    )


@pytest.mark.parametrize("queue", ["off", "on"])
def test_work_in_hand_is_the_calls_in_progress_and_those_that_wait(
    queue: str, tmp_path: Path
) -> None:
    series = {
        # Of each 15 s: 3 s of work on Score, 12 s of Pick, of which 9 s are waits in the queue.
        counted("warmpath_request_seconds_sum", ',method="Score"'): "0+3" + HOUR,
        counted("warmpath_request_seconds_sum", ',method="Pick"'): "0+12" + HOUR,
        counted("warmpath_waiting_calls"): "2" + HOUR,
    }
    expected = 3 / 15 + 12 / 15 + 2
    if queue == "on":
        waits = ',class="usual",outcome="sent"'
        series[counted("warmpath_queue_wait_seconds_sum", waits)] = "0+9" + HOUR
        expected -= 9 / 15
    asked = f"round(warmpath:work_in_hand:mean2m{{{ROUTER}}}, 0.001)"
    sample = {"labels": f"{{{ROUTER}}}", "value": round(expected, 3)}
    run_tests(tmp_path, [one_test(series, expr=asked, exp_samples=[sample])])
